"""FedAdagrad.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar and H.
Brendan McMahan: "Adaptive Federated Optimization", ICLR 2021.

FedAvg whose server takes d = mean(w_k) - w as a pseudo-gradient: m <- beta1·m + (1 - beta1)·d, v <- v + d^2, w <- w +
eta·m / (sqrt(v) + tau). No bias correction; v starts at tau^2. beta1 = 0, tau = 1e-3. The paper tunes both learning
rates by task; eta = 0.1, eta_l = 10^-1.5, batch 20 and E = 1 are those of CIFAR-10.

Lost, late and vanished devices are left out of d as in `fedavg`. A round without results moves neither w nor m nor v.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Adagrad

SUMMARY = "rare features: server steps by parameter that only shrink"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    aggregator=Adagrad(lr=0.1, beta1=0.0, tau=1e-3),
    training=msgspec.structs.replace(fedavg.STRATEGY.training, lr=0.0316, batch=20),
)
