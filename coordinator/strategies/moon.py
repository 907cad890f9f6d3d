"""MOON.

Qinbin Li, Bingsheng He and Dawn Song: "Model-Contrastive Federated Learning", CVPR 2021.

FedAvg whose devices minimise CE(f(w,x), y) + mu·CE([cos(p,p_glob), cos(p,p_prev)]/tau, 0): their representations p are
drawn to those of the model received, and pushed away from those of the device's own last model. p is what two linear
layers make before the last one (256 numbers); they are a part of the model, so that mu = 0 is FedAvg *with the
projection*; `objective.projection = 0` compares what goes into the last layer of the model as it is. mu = 5, tau = 0.5,
lr = 0.01, momentum 0.9, weight decay 1e-5, batch 64 and E = 10 are its figures for CIFAR-10; mu is tuned from 0.001 to
10.

The device keeps the model that it sent back, and only if that was accepted: after a visit that was lost, refused by the
gate or answered too late, the last one that counted is still the one to go away from. A first visit has none, and is
FedAvg's; so is that of a device that was set up anew, and says that it lost its memory. In a tour p_glob is of the
predecessor's model; `objective.anchor = "round"` takes the round's.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Moon, Training

SUMMARY = "skewed images: draws representations to the global model's"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    objective=Moon(mu=5.0, tau=0.5),
    training=Training(epochs=10, batch=64, lr=0.01, momentum=0.9, weight_decay=1e-5),
)
