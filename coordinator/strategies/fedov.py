"""FedOV.

Yiqun Diao, Qinbin Li and Bingsheng He: "Towards Addressing Label Skews in One-Shot Federated Learning", ICLR 2023.

One round: every device trains a random model of its own with C + 1 answers, the last for what is unknown, which it
learns from outliers made of its own samples (a small crop, a blur, a hole, halves cut or turned), from outliers changed
so as to look known, from its samples without their own class, and from mixtures of unlike samples. Adam, lr = 1e-3,
weight decay 1e-5, batch 64, 200 epochs, as in the authors' script. The result is a vote: the sum of the models'
probabilities of the C classes, so that a model that finds a sample unknown hardly counts. A vote is evaluated, and not
released; one model learns from it on the exemplars (Adam, 100 epochs), and can be. With BatchNorm only samples and
outliers are learnt from, in one batch, as the authors do. For images alone. A step costs about ten plain ones.

A lost or late device has no vote; with one device its answers are the vote. There is no second round.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import OneShot, Outliers, SingleArranger, Training, UniformMean, Vote

SUMMARY = "one round; models that know what they do not know vote"
STRATEGY = Strategy(
    arranger=SingleArranger(fraction=1.0),
    schedule=OneShot(),
    objective=Outliers(),
    aggregator=UniformMean(),
    finisher=Vote(),
    training=Training(lr=1e-3, optimiser="adam", weight_decay=1e-5, batch=64, epochs=200),
)
