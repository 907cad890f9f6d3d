"""FedYogi.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar and H.
Brendan McMahan: "Adaptive Federated Optimization", ICLR 2021.

As `fedadam`, with v <- v - (1 - beta2)·d^2·sign(v - d^2): v changes by as much as d^2 at most, also where d is small.
beta1 = 0.9, beta2 = 0.99, tau = 1e-3; eta = 0.01 with eta_l = 10^-1.5 is the paper's choice for CIFAR-10.

Lost, late and vanished devices are left out of d as in `fedavg`. A round without results moves neither w nor m nor v.
"""

import msgspec

from coordinator.strategies import fedadam
from sojourn.parts import Yogi

SUMMARY = "as fedadam where few devices train: gentler steps"
STRATEGY = msgspec.structs.replace(fedadam.STRATEGY, aggregator=Yogi(lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3))
