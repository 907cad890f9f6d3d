"""FedAvg.

H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Agüera y Arcas: "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Tours of one device: each of max(1, floor(C·K)) devices trains E epochs of mini-batch SGD from the global model w_t, all
in parallel, and w_{t+1} = sum of n_k / n · w_k over those that came home. The paper sweeps C, E, B and the learning
rate; here all devices train (C = 1) with the system's own defaults.

A lost visit is a lost tour: it is left out of the mean, and n counts only the samples that were seen. A round in which
every visit was lost leaves the model as it was. A late answer is fenced off and never counted. A device that vanished
for good is no longer drawn: there is nothing to clean up.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import SingleArranger

SUMMARY = "the plain baseline: all in parallel, mean by samples"
STRATEGY = Strategy(arranger=SingleArranger(fraction=1.0))
