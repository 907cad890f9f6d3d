"""MetaFed.

Yiqiang Chen, Wang Lu, Xin Qin, Jindong Wang and Xing Xie: "MetaFed: Federated Learning among Federations with Cyclic
Knowledge Distillation for Personalized Healthcare", IEEE TNNLS 2023.

Each device keeps a model w_k. First every device trains alone for 30 epochs from the same start. Then one model goes
around all devices in a fixed order, R - 1 = 299 times: a device with more than threshold = 0.6 right answers on its
validation part goes on from w_k with l + lam·MSE(phi(w_k, x), phi(u, x)), lam = 1, u the model of the device before it
and phi what the last layer is given; any other copies u and trains on l. Last, every device takes the last one's model
for its teacher once more, lam scaled by how much better that answers. E = 1 epoch, batches of 32, lr = 0.01; 40 % of
the samples train, 30 % choose, 30 % test. The authors' script sets threshold = 1.1: then nobody distils, and it is a
ring with a last local training. The result is a model for each device; the job's one model is that of the ring's last
device.

A lost visit is skipped: the next device receives the model of the last one that counted, and the device keeps what it
has. Where the first is lost the next device is the first. A device whose warm-up was lost, or that has lost its store,
begins with the model received; the round's report says so. Who comes after the ring was made takes no part.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import ChainArranger, Common, PhasedRing, Training, UniformMean

SUMMARY = "a model for each device: a ring hands on what is common"
STRATEGY = Strategy(
    arranger=ChainArranger(order="name"),
    schedule=PhasedRing(trips=299),
    objective=Common(
        lam=1.0, threshold=0.6, floor=0.5, warmup=30, share_norms=True, validation=0.3, test=0.3, phase="warm-up"
    ),
    aggregator=UniformMean(),
    training=Training(epochs=1, batch=32, lr=0.01),
)
