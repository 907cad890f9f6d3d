"""FedSeq.

Riccardo Zaccone, Andrea Rizzardi, Debora Caldarola, Marco Ciccone and Barbara Caputo: "Speeding up Heterogeneous
Federated Learning with Sequentially Trained Superclients", ICPR 2022.

Superclients are built once: greedily, from psi_conf (the mean softmax answers on exemplars after e = 10 epochs, made a
distribution) with tau = KL, each closed at |D_S|min = 800 samples or K_S,max = 11 devices. In each round max(1,
floor(0.2·N_S)) of them train: the model tours a superclient's devices in shuffled order, E_k = 1 epoch each, E_S = 1
pass, and the server averages the results weighted by |D_S|. lr = 0.01, weight decay 4e-4, no momentum, batch 64.
VISIT's tables use another form: `sets` and `size`, `tau = "cosine"`, `estimate = "mean"`, `rearrange_every = 1`.

A lost visit costs its hop: the superclient's weight is the samples that its model really saw. A superclient that lost
all its visits is left out of the mean. A late answer is fenced off. A device that vanished for good leaves its
superclient smaller, and a superclient without devices is gone: it is not built anew unless `rearrange_every` says so. A
device that joins later is in none until then.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import ConfidenceEstimator, EveryRound, FedSeqArranger, Training

SUMMARY = "many small devices: superclients of unlike ones, built once"
STRATEGY = Strategy(
    estimator=ConfidenceEstimator(epochs=10, where="server", normalise="sum"),
    arranger=FedSeqArranger(grouping="greedy", tau="kl", min_samples=800, max_devices=11),
    schedule=EveryRound(rearrange_every=0, fraction=0.2, order="shuffled"),
    training=Training(lr=0.01, weight_decay=4e-4, batch=64),
)
