"""FedBN.

Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang, Michael Kamp and Qi Dou: "FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization", ICLR 2021.

FedAvg whose devices keep their BatchNorm layers: scale, shift and running statistics never leave a device, and what is
left is averaged, every device alike. Each device ends with a model of its own, the shared part with its own layers, and
is tested on a fifth of its own samples, on which it never trains. E = 1 epoch, batches of 32, lr = 0.01, as the authors
train digits. The job's own model has the BatchNorm layers of the start: it is no result, unless the model has none.
Without BatchNorm and with test = 0 this is FedAvg with a uniform mean, bit for bit.

A lost visit is left out of the mean, and the device keeps the layers of its last visit that counted. A device that
comes later, or has lost its store, begins with the layers of the start; the round's report says so.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import LocalNorms, SingleArranger, Training, UniformMean

SUMMARY = "features differ by device: BatchNorm layers stay there"
STRATEGY = Strategy(
    arranger=SingleArranger(fraction=1.0),
    objective=LocalNorms(test=0.2),
    aggregator=UniformMean(),
    training=Training(epochs=1, batch=32, lr=0.01),
)
