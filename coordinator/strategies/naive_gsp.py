"""NaiveGSP.

Shenglai Zeng, Zonghang Li, Hongfang Yu, Yihong He, Zenglin Xu, Dusit Niyato and Han Yu: "Heterogeneous Federated
Learning via Grouped Sequential-to-Parallel Training", DASFAA 2022.

FedGSP's ablation without STP and ICG: all devices in 10 random groups, drawn once; nothing is asked of devices.

Failures do what they do in `naive-gsp-icg`.
"""

import msgspec

from coordinator.strategies import naive_gsp_icg
from sojourn.parts import NoEstimator, RandomArranger

SUMMARY = "control for fedgsp and fedseq: random tours, drawn once"
STRATEGY = msgspec.structs.replace(naive_gsp_icg.STRATEGY, estimator=NoEstimator(), arranger=RandomArranger(sets=10))
