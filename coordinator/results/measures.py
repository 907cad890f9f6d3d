"""The measures of an arrangement, by the names that people read."""

MEASURES = {
    "vts": "VTS",
    "intra_cs": "intra",
    "inter_cs": "inter",
    "balance": "balance",
    "covered": "classes",
    "cpd": "CPD",
}
