"""VISIT: Chang, Chiu and Sheu, "Virtual-Targeted Sequential Training with Hierarchical FL on Non-IID Data".

Each device k is known by its signature v_k: the mean softmax answer for each class on public exemplars, after a few
epochs from the same w_0. Each of L client sets starts with a random device and takes k-1 times the one that brings the
set's mean signature nearest to the virtual target (1, ..., 1). The model tours each set; the cloud averages the L
results, weighted by samples. The sets are arranged anew every round.

The paper gives no e, exemplar count or learning rate: e = 10 is the knee of FedSeq's curve, and so are ten exemplars
of each class. A lost visit costs its hop: the tour's weight is the samples that its model really saw; a tour that lost
all its visits counts for nothing.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import EveryRound, SignatureEstimator, VisitArranger

STRATEGY = Strategy(
    estimator=SignatureEstimator(epochs=10, where="server"),
    arranger=VisitArranger(sets=2, size=4),
    schedule=EveryRound(rearrange_every=1),
)
