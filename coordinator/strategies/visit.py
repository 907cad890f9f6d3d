"""VISIT.

Kung-Hao Chang, Te-Chuan Chiu and Jang-Ping Sheu: "VISIT: Virtual-Targeted Sequential Training with Hierarchical
Federated Learning on Non-IID Data", IEEE GLOBECOM 2023.

Each device k is known by its signature v_k: the mean softmax answer for each class on public exemplars, after e epochs
from the same w_0. Each of L client sets starts with a random device and takes k-1 times the one that brings the set's
mean signature nearest to the virtual target (1, ..., 1). The model tours each set in the order of addition; the cloud
averages the L results, weighted by samples. The sets are arranged anew every round. The paper gives no N, e, exemplar
count or learning rate: e = 10 is the knee of FedSeq's curve, and L = 2 sets of k = 4 suit a small fleet.

A lost visit costs its hop: the model goes on to the next device, and the tour's weight is the samples that its model
really saw. A tour that lost all its visits counts for nothing; a round of such tours leaves the model as it was. A late
answer is fenced off. A device that vanished for good is in no set of the next round, and its signature is kept in case
it returns; one that gives no signature twice is left out.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import EveryRound, SignatureEstimator, VisitArranger

SUMMARY = "a job file's default: balanced sets, toured one by one"
STRATEGY = Strategy(
    estimator=SignatureEstimator(epochs=10, where="server"),
    arranger=VisitArranger(sets=2, size=4),
    schedule=EveryRound(rearrange_every=1),
)
