"""NaiveGSP with ICG.

Shenglai Zeng, Zonghang Li, Hongfang Yu, Yihong He, Zenglin Xu, Dusit Niyato and Han Yu: "Heterogeneous Federated
Learning via Grouped Sequential-to-Parallel Training", DASFAA 2022.

FedGSP's ablation without STP: ICG's groups, a fixed number of them, built once. The paper does not say how many: 10, as
many as FedGSP starts with. max(1, floor(0.3·groups)) of them train in a round.

Failures do what they do in `fedgsp`, but a device that vanished for good leaves its group smaller, and one that joins
later, or did not fit when the groups were built, never trains.
"""

import msgspec

from coordinator.strategies import fedgsp
from sojourn.parts import EveryRound

SUMMARY = "control for fedgsp: its groups, but always as many"
STRATEGY = msgspec.structs.replace(
    fedgsp.STRATEGY, schedule=EveryRound(rearrange_every=0, fraction=0.3, order="shuffled")
)
