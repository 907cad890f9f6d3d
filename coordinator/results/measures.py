"""The measures of an arrangement: the names that people read, and what they say."""

MEASURES = {
    "vts": "VTS",
    "intra_cs": "Intra-CS",
    "inter_cs": "Inter-CS",
    "balance": "balance",
    "covered": "classes",
    "cpd": "CPD",
}
MEANING = {
    "vts": "virtual target similarity: how near each set's classes are to all classes alike. 1 is best: every set is "
    "balanced.",
    "intra_cs": "how alike the devices inside a set are. Low is good: each set sees much of the world.",
    "inter_cs": "how alike the sets are to each other. High is good: the tours learn the same things.",
    "balance": "the rarest class of a set over its most frequent one. 1: every class has as many samples.",
    "covered": "how many classes a set has samples of, on average.",
    "cpd": "FedGSP's class probability distance between sets. Low: the sets are alike.",
}
"""What the measures of an arrangement say, in a line each."""
