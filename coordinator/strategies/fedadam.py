"""FedAdam.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar and H.
Brendan McMahan: "Adaptive Federated Optimization", ICLR 2021.

As `fedadagrad`, with v <- beta2·v + (1 - beta2)·d^2: old rounds are forgotten. beta1 = 0.9, beta2 = 0.99, tau = 1e-3,
no bias correction. eta = 0.01 with eta_l = 10^-1.5 is the paper's choice for CIFAR-10.

Lost, late and vanished devices are left out of d as in `fedavg`. A round without results moves neither w nor m nor v.
"""

import msgspec

from coordinator.strategies import fedadagrad
from sojourn.parts import Adam

SUMMARY = "tasks that are hard to tune: Adam on the server"
STRATEGY = msgspec.structs.replace(fedadagrad.STRATEGY, aggregator=Adam(lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3))
