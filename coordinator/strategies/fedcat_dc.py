"""FedCat with DC alone.

Ming Hu, Tian Liu, Zhiwei Ling, Zhihao Yue and Mingsong Chen: "FedCAT: Towards Accurate Federated Learning via Device
Concatenation", arXiv:2202.12751, 2022.

The ablation "FedCat w/ DC": device concatenation, but K devices are drawn at random in each round, without groups.

Failures do what they do in `fedcat`; there are no counts.
"""

import msgspec

from coordinator.strategies import fedcat

SUMMARY = "control for fedcat: copies hop among devices at random"
STRATEGY = msgspec.structs.replace(
    fedcat.STRATEGY, arranger=msgspec.structs.replace(fedcat.STRATEGY.arranger, grouped=False)
)
