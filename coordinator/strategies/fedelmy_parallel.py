"""FedELMY in parallel.

Naibo Wang, Yuchen Deng, Wenjie Feng, Shichen Fan, Jianwei Yin and See-Kiong Ng: "One-Shot Sequential Federated Learning
for Non-IID Data by Enhancing Local Model Diversity", ACM Multimedia 2024.

Algorithm 2 of the supplement: every device warms up a random model of its own, builds its own pool, and the result is
the uniform mean of the pools' means. The devices' models are made from the one that is sent, by shuffling each tensor.
Models that began apart average badly; `objective.start = "received"` lets all begin with the same one.

A lost or late device is left out of the mean; there is no second round.
"""

import msgspec

from coordinator.strategies import fedelmy
from sojourn.parts import OneShot, SingleArranger, UniformMean

SUMMARY = "fedelmy when a row takes too long: all at once"
STRATEGY = msgspec.structs.replace(
    fedelmy.STRATEGY,
    arranger=SingleArranger(fraction=1.0),
    schedule=OneShot(),
    objective=msgspec.structs.replace(fedelmy.STRATEGY.objective, start="own"),
    aggregator=UniformMean(),
)
