"""FedDyn.

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough and Venkatesh Saligrama:
"Federated Learning Based on Dynamic Regularization", ICLR 2021.

Device k steps along g - h_k + a·(w - w_in) and keeps h_k <- h_k - a·(w_out - w_in). The server keeps h <- h -
a·(1/N)·sum(w_k - w_prev) over the participants, N all devices that the job has had, and w = mean(w_k) - h/a with the
uniform mean. alpha = 0.01, lr = 0.1, weight decay 1e-3, batch 50, E = 5 are its figures for CIFAR-10; its decay of the
learning rate (0.998 a round) and its clipping of gradients are not built: lower `lr` where training diverges.

A visit that was lost, refused by the gate or answered too late changes neither h_k nor h: a device keeps its h_k only
when its result was accepted, so h = (1/N)·sum(h_k). Only a site that is lost with accepted results on it leaves their
h_k ahead of h. A round without results changes nothing. A device that vanished for good leaves its share in h for good.
One that is new starts with h_k = 0, and h is spread over more; so does one that was set up anew, and says so.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import Dyn, DynServer, Training

SUMMARY = "skewed data, steady devices; corrects drift, no extra bytes"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    objective=Dyn(a=0.01),
    aggregator=DynServer(),
    training=Training(epochs=5, batch=50, lr=0.1, weight_decay=1e-3),
)
