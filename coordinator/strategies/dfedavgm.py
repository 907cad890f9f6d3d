"""DFedAvgM.

Tao Sun, Dongsheng Li and Bao Wang: "Decentralized Federated Averaging", IEEE Transactions on Pattern Analysis and
Machine Intelligence, 2023.

Every device trains with momentum theta = 0.9, started anew at each visit, and averages with its neighbours. As
FedELMY's tables have it, the graph is complete and all devices take part: the uniform mean of all models, which the
edge servers and the cloud work out here. Sparse graphs and quantised messages are not built. lr = 0.1, weight decay
5e-4, batch 128 and E = 5 are those of DFedSAM's comparison.

A lost or late visit is left out of the mean, which is uniform over the rest. A round without results changes nothing.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Training, UniformMean

SUMMARY = "nobody tells how much data there is: uniform mean, momentum"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    aggregator=UniformMean(),
    training=Training(epochs=5, batch=128, lr=0.1, momentum=0.9, weight_decay=5e-4),
)
