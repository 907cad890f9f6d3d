"""FedCat with GC alone.

Ming Hu, Tian Liu, Zhiwei Ling, Zhihao Yue and Mingsong Chen: "FedCAT: Towards Accurate Federated Learning via Device
Concatenation", arXiv:2202.12751, 2022.

The ablation "FedCat w/ GC": grouping- and count-based selection, but models merge in every round.

A lost or late visit is left out of the mean, as in `fedavg`; counts are kept as in `fedcat`.
"""

import msgspec

from coordinator.strategies import fedcat
from sojourn.parts import EveryRound

SUMMARY = "control for fedcat: its fair choice, merged every round"
STRATEGY = msgspec.structs.replace(fedcat.STRATEGY, schedule=EveryRound(rearrange_every=1))
