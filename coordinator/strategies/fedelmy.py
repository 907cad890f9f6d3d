"""FedELMY.

Naibo Wang, Yuchen Deng, Wenjie Feng, Shichen Fan, Jianwei Yin and See-Kiong Ng: "One-Shot Sequential Federated Learning
for Non-IID Data by Enhancing Local Model Diversity", ACM Multimedia 2024.

One model makes one trip through all devices. The first device warms a random model up for E_w = 30 epochs. Device i
starts a pool with the model received and trains S = 5 models, each from the pool's mean for E_local = 200 epochs on l -
alpha·s·d1 + beta·s·d2, alpha = 0.06, beta = 1, with d1 the mean squared distance to the pool, d2 that to the model
received, and s one order of magnitude below l. It keeps the best epoch on a tenth of its data and hands on the pool's
mean. Adam, weight decay 1e-4, batch 128. The paper's lr = 5e-5 is for ResNet-18; 1e-3 is what the authors' code takes
for their small CNN, and the models here are of that size. These are for CIFAR-10; on Office-Caltech-10 the paper takes
S = 10, alpha = beta = 0.001 and E_w = 20: there a beta of 1 holds each device so near to what it received that the
plain pass does better.

A lost visit, whatever its reason, is skipped: the next device receives the model of the last visit that counted, and
what the device learnt is missing for good, for there is no second round. Where the first visit is lost the next device
is the first. A site that brings nothing home passes on the model it was given. There is one model, so samples weigh
nothing.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import ChainArranger, Elmy, Ring, Training

SUMMARY = "one trip is all there is: each hands on a pool's mean"
STRATEGY = Strategy(
    arranger=ChainArranger(order="random"),
    schedule=Ring(trips=1),
    objective=Elmy(models=5, alpha=0.06, beta=1.0, warmup=30, validation=0.1, start="received"),
    training=Training(epochs=200, batch=128, lr=1e-3, optimiser="adam", weight_decay=1e-4),
)
