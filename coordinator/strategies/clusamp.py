"""CluSamp.

Yann Fraboni, Richard Vidal, Laetitia Kameni and Marco Lorenzi: "Clustered Sampling: Low-Variance and Improved
Representativity for Clients Selection in Federated Learning", ICML 2021.

Algorithm 2: the last updates theta_k - theta of the devices are clustered by Ward's method into m distributions that
hold the same mass of data each; one device is drawn from each, in proportion to its samples; the m models are averaged
uniformly, since the draw has weighed them already. A device that was not visited yet has a zero update, so the first
round draws by samples alone. m = 10 is the paper's; it sweeps the rest, so training is as in `fedavg`. A device can be
drawn twice in a round: objectives with a memory are refused.

A lost or late draw is left out of the mean, which is uniform over the rest, and the device's stored update stays the
one of its last visit that counted. A round without results changes nothing. A device that vanished for good is in no
later cluster; its update is kept in case it returns.
"""

import msgspec

from coordinator.strategies import fedavg
from sojourn.parts import CluSampArranger, UniformMean, UpdateEstimator

SUMMARY = "few of many devices a round: draws from all kinds of them"
STRATEGY = msgspec.structs.replace(
    fedavg.STRATEGY,
    estimator=UpdateEstimator(epochs=0),
    arranger=CluSampArranger(sets=10),
    aggregator=UniformMean(),
)
