"""IDA.

Yousef Yeganeh, Azade Farshad, Nassir Navab and Shadi Albarqouni: "Inverse Distance Aggregation for Federated Learning
with Non-IID Data", DART and DCL workshops at MICCAI 2020.

FedAvg with other weights: alpha_k is in proportion to 1 / (epsilon + |w_k - w_avg|), w_avg the mean of the models that
came home, here weighted by samples (`weighting = "uniform"` is the option). The paper gives no epsilon: 1e-6.

Lost, late and vanished devices are in neither mean. One model alone comes home unchanged; a round without results
leaves the model as it was.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Ida

SUMMARY = "a few odd devices: models far from the mean say little"
STRATEGY = msgspec.structs.replace(fedavg.STRATEGY, aggregator=Ida(epsilon=1e-6))
