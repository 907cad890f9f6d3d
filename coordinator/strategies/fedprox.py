"""FedProx.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith: "Federated Optimization in
Heterogeneous Networks", MLSys 2020.

FedAvg whose devices minimise F_k(w) + mu/2 |w - w_t|^2, with w_t the model received: the step follows g + mu·(w - w_t).
mu = 0 is FedAvg. The paper trains E = 20 epochs in batches of 10 and picks mu from 0.001, 0.01, 0.1 and 1 by data set;
0.01 is what FedSeq and FedCat settled on for CIFAR-10. Its learning rates differ by data set: ours stays.

Nothing is remembered on a device, so lost, late and vanished devices do what they do in `fedavg`. A device that cannot
finish its epochs is lost; the paper's partial work (gamma-inexact solutions) would be fewer `epochs`.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Prox

SUMMARY = "many local epochs: devices stay near the model they got"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    objective=Prox(mu=0.01),
    training=msgspec.structs.replace(fedavg.STRATEGY.training, epochs=20, batch=10),
)
