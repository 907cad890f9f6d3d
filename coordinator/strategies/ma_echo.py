"""MA-Echo.

Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
2023.

One round: every device trains a random model of its own (lr = 0.01, momentum 0.5, batch 64, 10 epochs) and goes through
its data once more without training: for each layer of weights it finds the projection P_i onto what its data leaves
free. The coordinator moves all models together along the P_i, tau = 60 times by lam = 1.6 (the authors' MLP; for a CNN
they have tau = 300, lam = 0.05, norm = true), so that each layer goes on giving every device its own answers; the last
layer's row of a class is the mean over devices that have it. Weights alpha_i are equal, as in the authors' code; their
paper chooses them, and aligns neurons first if asked: neither is here. P takes d x d numbers for a layer with d inputs:
`objective.rank = 64` tells 64 leading directions alone. Of the first layer they show the device's mean samples: only
devices take part whose owners share projections.

A lost or late device is left out of the mean. With one device the result is its model. There is no second round.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import Echo, EchoServer, OneShot, SingleArranger, Training, UniformMean

SUMMARY = "one round; merges so that every device's answers stay"
STRATEGY = Strategy(
    arranger=SingleArranger(fraction=1.0),
    schedule=OneShot(),
    objective=Echo(),
    aggregator=UniformMean(),
    finisher=EchoServer(),
    training=Training(lr=0.01, momentum=0.5, batch=64, epochs=10),
)
