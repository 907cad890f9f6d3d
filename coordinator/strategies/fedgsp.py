"""FedGSP.

Shenglai Zeng, Zonghang Li, Hongfang Yu, Yihong He, Zenglin Xu, Dusit Niyato and Han Yu: "Heterogeneous Federated
Learning via Grouped Sequential-to-Parallel Training", DASFAA 2022.

STP: round r asks for f(r) = beta·floor(alpha·ln r + 1) groups, alpha = 2, beta = 10, at most N: few long tours first,
many short ones later. ICG: from the devices' class counts, floor(N/L) groups of L = floor(N/f) devices, alike to each
other and mixed inside; the devices that do not fit rest for a round. Of 50 random draws of one device of each cluster
the most alike groups stay (`arranger.draws = 1` is the paper's single draw). A share kappa = 0.3 of the groups trains,
each in shuffled order, and the result is their uniform mean: line 14's division by f(r) only makes sense as that. lr =
0.01, batch 5, E = 1. Class counts tell much of a device's data and need its owner's consent; `estimator.name =
"signature"` can stand in.

A lost visit costs its hop; a group that lost all its visits is left out of the mean, and so is a late one. A device
that vanished for good is in no later group, and f(r) is cut to the devices that are left.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import ClassCountEstimator, IcgArranger, SequentialToParallel, Training, UniformMean

SUMMARY = "class counts may be told: long tours first, short ones later"
STRATEGY = Strategy(
    estimator=ClassCountEstimator(unwilling="refuse"),
    arranger=IcgArranger(sets=10, iterations=10),
    schedule=SequentialToParallel(growth="log", alpha=2.0, beta=10, kappa=0.3, order="shuffled"),
    aggregator=UniformMean(),
    training=Training(lr=0.01, batch=5, epochs=1),
)
