"""Strategies that leave a separate model on each device."""

from coordinator.strategies.strategy import Named, Strategy
from sojourn.parts import ChainArranger, Common, LocalNorms, PhasedRing, SingleArranger, Training, UniformMean

FEDBN = Named(
    name="fedbn",
    title="FedBN",
    summary="features differ by device: BatchNorm layers stay local",
    paper="""
    Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang, Michael Kamp and Qi Dou: "FedBN: Federated Learning on Non-IID Features
    via Local Batch Normalization", ICLR 2021.
    """,
    text="""
    FedAvg whose devices keep their BatchNorm layers: scale, shift and running statistics never leave a device. The rest
    is averaged uniformly. Each device ends with its own model: the shared part with its own layers. It is tested on a
    fifth of the device's samples, on which the device never trains. E = 1 epoch, batches of 32, lr = 0.01, as the
    authors train digits. The job's one model has the BatchNorm layers of the start, so it is not a usable result unless
    the model has no BatchNorm. Without BatchNorm and with test = 0 this is FedAvg with a uniform mean, bit for bit.

    The mean skips a lost visit, and the device keeps the layers of its last accepted visit. A device that joins later,
    or has lost its store, begins with the layers of the start; the round's report names it.
    """,
    strategy=Strategy(
        arranger=SingleArranger(fraction=1.0),
        objective=LocalNorms(test=0.2),
        aggregator=UniformMean(),
        training=Training(epochs=1, batch=32, lr=0.01),
    ),
)
METAFED = Named(
    name="metafed",
    title="MetaFed",
    summary="a model for each device: a ring passes on shared knowledge",
    paper="""
    Yiqiang Chen, Wang Lu, Xin Qin, Jindong Wang and Xing Xie: "MetaFed: Federated Learning among Federations with
    Cyclic Knowledge Distillation for Personalized Healthcare", IEEE TNNLS 2023.
    """,
    text="""
    Each device keeps a model w_k. First every device trains alone for 30 epochs from the same start. Then one model
    goes around all devices in a fixed order, R - 1 = 299 times. A device whose accuracy on its validation part is above
    threshold = 0.6 continues from w_k with l + lam·MSE(phi(w_k, x), phi(u, x)), lam = 1, with u the model of the device
    before it and phi the input of the last layer. Any other device copies u and trains on l. Last, every device takes
    the last device's model as its teacher once more, with lam scaled by how much better that model is. E = 1 epoch,
    batches of 32, lr = 0.01; 40 % of the samples train, 30 % choose, 30 % test. The authors' script sets threshold =
    1.1: then no device distils, and the strategy is a ring with a last local training. The result is a model for each
    device; the job's one model is that of the ring's last device.

    A lost visit is skipped: the next device receives the model of the last accepted visit, and the device keeps its
    model. If the first visit is lost, the next device is the first. A device whose warm-up was lost, or that has lost
    its store, begins with the model received; the round's report names it. A device that joins after the ring was made
    takes no part.
    """,
    strategy=Strategy(
        arranger=ChainArranger(order="name"),
        schedule=PhasedRing(trips=299),
        objective=Common(
            lam=1.0, threshold=0.6, floor=0.5, warmup=30, share_norms=True, validation=0.3, test=0.3, phase="warm-up"
        ),
        aggregator=UniformMean(),
        training=Training(epochs=1, batch=32, lr=0.01),
    ),
)
