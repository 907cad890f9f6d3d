"""KEEL.

The makers of Sojourn: "KEEL: tours on an even keel", docs/strategies/keel.md, 2026.

Random tours, in which everybody has a turn before anybody has the next. A device trains with its answers moved by the
logarithm of its own shares of the classes (`objective.name = "logit-adjustment"`, tau = 1): what it lacks is then not
unlearnt on it, so a tour needs no balanced set, and nobody has to know who has what. The server goes on in the
direction of the merges before, v <- 0.9·v + d and w <- w + v with d = mean - w, number by number for as long as tours
agree: where d_i points against v_i, and so do four fifths of the tours (rounded down), v_i <- d_i. The model that is
tested and shipped is the mean of the last merges, at most 10. Where a task has no classes, devices train on the plain
loss; the rest is the same.

A lost visit costs its hop: the model goes on to the next device, and the tour's weight is the samples that its model
really saw. A tour that lost all its visits counts for nothing; a round of such tours moves neither the model nor v. A
late answer is fenced off. A device that was away, or is new, has its turn of the present lap and does not catch up on
earlier ones.
"""

from coordinator.strategies.strategy import Strategy
from sojourn.parts import AvgM, EveryRound, LogitAdjustment, RandomArranger

SUMMARY = "recommended, ours: calibrated visits, momentum with a brake"
STRATEGY = Strategy(
    arranger=RandomArranger(sets=2, size=4, turns=True),
    schedule=EveryRound(rearrange_every=1),
    objective=LogitAdjustment(tau=1.0),
    aggregator=AvgM(momentum=0.9, restart="each", window=10),
)
