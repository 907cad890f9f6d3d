"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Tours of one device, all in parallel from the same model; the mean weighted by samples. A lost visit is left out of the
mean; a round in which every visit was lost leaves the model as it was.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import SingleArranger

STRATEGY = Strategy(arranger=SingleArranger(fraction=1.0))
