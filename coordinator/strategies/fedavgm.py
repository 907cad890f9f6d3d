"""FedAvgM.

Tzu-Ming Harry Hsu, Hang Qi and Matthew Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", arXiv:1909.06335, 2019.

FedAvg with momentum on the server: with d = mean(w_k) - w_t, v <- beta·v + d and w_{t+1} = w_t + v. beta = 0.9 is the
paper's; beta = 0 with a server learning rate of 1 is FedAvg. The paper sweeps learning rate, epochs and fraction: those
stay as in `fedavg`.

Lost, late and vanished devices are left out of d as in `fedavg`. A round in which every visit was lost moves neither
the model nor v: momentum does not coast on silence.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import AvgM

SUMMARY = "FedAvg that swings from round to round: server momentum"
STRATEGY = msgspec.structs.replace(fedavg.STRATEGY, aggregator=AvgM(momentum=0.9, lr=1.0))
