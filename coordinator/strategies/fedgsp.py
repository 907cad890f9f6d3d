"""FedGSP and its ablations."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import (
    ClassCountEstimator,
    EveryRound,
    IcgArranger,
    NoEstimator,
    RandomArranger,
    SequentialToParallel,
    Training,
    UniformMean,
)

PAPER = """
Shenglai Zeng, Zonghang Li, Hongfang Yu, Yihong He, Zenglin Xu, Dusit Niyato and Han Yu: "Heterogeneous Federated
Learning via Grouped Sequential-to-Parallel Training", DASFAA 2022.
"""

FEDGSP = Named(
    name="fedgsp",
    title="FedGSP",
    summary="if class counts may be shared: long tours first, then short",
    paper=PAPER,
    text="""
    STP: round r needs f(r) = beta·floor(alpha·ln r + 1) groups, alpha = 2, beta = 10, at most N: few long tours first,
    many short ones later. ICG: from the devices' class counts, floor(N/L) groups of L = floor(N/f) devices; the groups
    are similar to each other, and the devices inside a group differ. Devices that do not fit pause for a round. A draw
    takes one device of each cluster; of 50 random draws the one with the most similar groups is used (`arranger.draws =
    1` is the paper's single draw). A share kappa = 0.3 of the groups trains, each in shuffled order, and the result is
    their uniform mean; line 14's division by f(r) makes sense only in that reading. lr = 0.01, batch 5, E = 1. Class
    counts reveal much about a device's data and need its owner's consent; `estimator.name = "signature"` is an
    alternative.

    A lost visit costs its hop. The mean skips a late group and a group that lost all its visits. A device that leaves
    for good is in no later group, and f(r) is limited to the number of remaining devices.
    """,
    strategy=Strategy(
        estimator=ClassCountEstimator(unwilling="refuse"),
        arranger=IcgArranger(sets=10, iterations=10),
        schedule=SequentialToParallel(growth="log", alpha=2.0, beta=10, kappa=0.3, order="shuffled"),
        aggregator=UniformMean(),
        training=Training(lr=0.01, batch=5, epochs=1),
    ),
)
NAIVE_GSP_ICG = Named(
    name="naive-gsp-icg",
    title="NaiveGSP with ICG",
    summary="control for fedgsp: its groups, but a fixed number",
    paper=PAPER,
    text="""
    FedGSP's ablation without STP: ICG's groups, a fixed number of them, built once. The paper does not state the
    number; here it is 10, the number that FedGSP starts with. max(1, floor(0.3·groups)) of them train in a round.

    Failures are handled as in `fedgsp`, but a device that leaves for good makes its group smaller. A device that joins
    later, or did not fit when the groups were built, never trains.
    """,
    strategy=replace(FEDGSP.strategy, schedule=EveryRound(rearrange_every=0, fraction=0.3, order="shuffled")),
)
NAIVE_GSP = Named(
    name="naive-gsp",
    title="NaiveGSP",
    summary="control for fedgsp and fedseq: random tours, drawn once",
    paper=PAPER,
    text="""
    FedGSP's ablation without STP and ICG: all devices in 10 random groups, drawn once. Devices report nothing.

    Failures are handled as in `naive-gsp-icg`.
    """,
    strategy=replace(NAIVE_GSP_ICG.strategy, estimator=NoEstimator(), arranger=RandomArranger(sets=10)),
)
