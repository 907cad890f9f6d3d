"""DENSE.

Jie Zhang, Chen Chen, Bo Li, Lingjuan Lyu, Shuang Wu, Shouhong Ding, Chunhua Shen and Chao Wu: "DENSE: Data-Free
One-Shot Federated Learning", NeurIPS 2022.

One round: every device trains from the same start, plain SGD, lr = 0.01, momentum 0.9, batch 128; the authors' README
has 400 epochs, their flags 100: here 200, as in the paper. Then the coordinator trains alone: in each of 200 epochs a
generator G, drawn anew, makes 256 images in 30 steps on which the models together are sure (oh), their BatchNorm layers
see what is usual to them (bn) and the student errs (adv); a fresh student learns the mean of their logits from all
images so far (tau = 20, lr = 0.005). The result is the student; the round says how good the plain mean and the models
together are. For images alone, and for one architecture. Costs nothing on devices; on the coordinator about 20,000
batches of 256 through every member: a GPU is wanted, and used if there is one.

A lost or late device is no teacher; with one device the student learns from it alone. There is no second round.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import Dense, OneShot, SingleArranger, Training, UniformMean

SUMMARY = "one round; made-up images teach the server a new model"
STRATEGY = Strategy(
    arranger=SingleArranger(fraction=1.0),
    schedule=OneShot(),
    aggregator=UniformMean(),
    finisher=Dense(),
    training=Training(lr=0.01, momentum=0.9, batch=128, epochs=200),
)
