"""KEEL.

Sojourn's own: docs/strategies/keel.md has the derivation, the curves, and what each part is worth.

Random tours, in which everybody has a turn before anybody has the next. Each device trains with its answers moved by
the logarithm of its own shares of the classes (`logit-adjustment`, tau = 1): a class that it lacks is not unlearnt on
it, so a tour needs no balanced set, and nobody has to know who has what. The server goes on in the direction of the
merges before: v <- 0.9 v + (mean - w), w <- w + v. The model that is tested and shipped is the mean of the last 10
merges.

Without classes (regression and the like) devices train on the plain loss; the rest is the same.

A lost visit costs its hop: the model goes on to the next device, and the tour's weight is the samples that its model
really saw. A tour that lost all its visits counts for nothing; a round of such tours moves neither the model nor v. A
late answer is fenced off. A device that was away, or is new, has its turn of the present lap and does not catch up on
others.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import AvgM, EveryRound, LogitAdjustment, RandomArranger

SUMMARY = "our own: fair random tours, calibrated visits, momentum, a mean of merges"
STRATEGY = Strategy(
    arranger=RandomArranger(sets=2, size=4, turns=True),
    schedule=EveryRound(rearrange_every=1),
    objective=LogitAdjustment(tau=1.0),
    aggregator=AvgM(momentum=0.9, window=10),
)
