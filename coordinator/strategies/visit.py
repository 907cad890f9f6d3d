"""The default strategy VISIT, its control HierCluster, and the recommended strategy KEEL."""

from msgspec.structs import replace

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import (
    AvgM,
    EveryRound,
    HierClusterArranger,
    LogitAdjustment,
    RandomArranger,
    SignatureEstimator,
    VisitArranger,
)

VISIT = Named(
    name="visit",
    title="VISIT",
    summary="default of job files: balanced sets, one device at a time",
    paper="""
    Kung-Hao Chang, Te-Chuan Chiu and Jang-Ping Sheu: "VISIT: Virtual-Targeted Sequential Training with Hierarchical
    Federated Learning on Non-IID Data", IEEE GLOBECOM 2023.
    """,
    text="""
    The signature v_k of device k is the mean softmax output for each class on public exemplars, after e epochs from the
    same w_0. Each of L client sets starts with a random device. It adds k-1 times the device that brings the set's mean
    signature nearest to the virtual target (1, ..., 1). The model tours each set in the order of addition, and the
    cloud averages the L results, weighted by samples. The sets are arranged again every round. The paper does not state
    N, e, the number of exemplars or the learning rate. e = 10 is the knee of FedSeq's curve, and L = 2 sets of k = 4
    suit a small fleet.

    A lost visit costs its hop: the model continues to the next device, and the tour's weight counts only the samples
    that its model was trained on. A tour that lost all its visits does not count; a round of only such tours leaves the
    model as it was. A late result is ignored. A device that leaves for good is in no set of the next round, and its
    signature is kept in case it returns. A device that twice fails to give a signature is skipped.
    """,
    strategy=Strategy(
        estimator=SignatureEstimator(epochs=10, where="server"),
        arranger=VisitArranger(sets=2, size=4),
        schedule=EveryRound(rearrange_every=1),
    ),
)
HIERCLUSTER = Named(
    name="hiercluster",
    title="HierCluster",
    summary="control for visit: sets of similar devices, meant to be worse",
    paper="""
    Christopher Briggs, Zhong Fan and Peter Andras: "Federated Learning with Hierarchical Clustering of Local Updates to
    Improve Training on Non-IID Data", IJCNN 2020.
    """,
    text="""
    As in VISIT's tables: Ward's clusters of the signatures, with set l drawn from cluster l, so that similar devices
    are together, and the model tours each set. It is the opposite of VISIT's arrangement and is meant to be worse. As
    published, the devices' updates are clustered and each cluster trains its own model: `estimator.name = "updates"`
    gives the first half; a model for each cluster is not built. A cluster smaller than a set is filled from the nearest
    ones.

    Failures are handled as in `visit`.
    """,
    strategy=replace(VISIT.strategy, arranger=HierClusterArranger(sets=2, size=4)),
)


KEEL = Named(
    name="keel",
    title="KEEL",
    summary="recommended: calibrated visits, momentum with a brake",
    paper="""
    The makers of Sojourn: "KEEL: tours on an even keel", docs/strategies/keel.md, 2026.
    """,
    text="""
    Random tours, in which every device has a turn before any device has the next. A device trains with its logits
    shifted by the logarithm of its class shares (`objective.name = "logit-adjustment"`, tau = 1). It then does not
    unlearn the classes that it lacks, so a tour needs no balanced set, and the coordinator needs no class counts. The
    server continues in the direction of the previous merges, v <- 0.9·v + d and w <- w + v with d = mean - w,
    separately for each parameter as long as tours agree: if d_i points against v_i, and so do four fifths of the tours
    (rounded down), v_i <- d_i. The model that is tested and released is the mean of the last merges, at most 10. If a
    task has no classes, devices train on the plain loss; the rest is the same.

    A lost visit costs its hop: the model continues to the next device, and the tour's weight counts only the samples
    that its model was trained on. A tour that lost all its visits does not count; a round of only such tours changes
    neither the model nor v. A late result is ignored. A device that was offline, or joins, has its turn of the present
    lap and does not catch up on earlier ones.
    """,
    strategy=Strategy(
        arranger=RandomArranger(sets=2, size=4, turns=True),
        schedule=EveryRound(rearrange_every=1),
        objective=LogitAdjustment(tau=1.0),
        aggregator=AvgM(momentum=0.9, restart="each", window=10),
    ),
)
