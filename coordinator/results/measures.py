"""The measures of an arrangement, by the names that people read."""

MEASURES = {
    "vts": "VTS",
    "intra_cs": "Intra-CS",
    "inter_cs": "Inter-CS",
    "balance": "balance",
    "covered": "classes",
    "cpd": "CPD",
}
