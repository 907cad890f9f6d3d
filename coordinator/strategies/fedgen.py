"""FedGen.

Zhuangdi Zhu, Junyuan Hong and Jiayu Zhou: "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021.

FedAvg whose server learns a generator of inputs for the model's last layer, from the last layers that devices sent, and
sends it along: from the second round on a device also learns from what it makes, a = b = 10, both by 0.98 less each
round. The generator takes 50 steps of Adam a round, with lr 3e-4. Numbers are of the authors' code for MNIST; the paper
has no second term (b = 0). Devices tell how many samples of each class they saw, which needs their owners' consent.

Lost, late and vanished devices are left out as in `fedavg`; a round in which every visit was lost changes neither the
model nor the generator. Models with BatchNorm are refused: their running statistics would see no made-up inputs.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import Generated, GeneratorServer, SingleArranger, Training, WeightedMean

SUMMARY = "FedAvg with a generator that tells devices of others' classes"
STRATEGY = Strategy(
    arranger=SingleArranger(fraction=1.0),
    objective=Generated(),
    aggregator=WeightedMean(),
    finisher=GeneratorServer(),
    training=Training(lr=0.01, batch=32),
)
