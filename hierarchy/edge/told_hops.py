"""What a tour's signs of life tell of its hops beyond their number: who failed and why, where a spare stepped in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from sojourn.protocol.limits import LABEL, MOST
from sojourn.protocol.wire import HopEnd, TourTold

if TYPE_CHECKING:
    from msgspec import UnsetType

    from hierarchy.edge.records import TourState

ENDED = 50
"""At most this many ends are told, the newest: a sign of life is a small message."""


def told_of(tour: TourState) -> TourTold | UnsetType:
    """What became of the tour's hops; nothing where all went as planned, which its plan and their number tell."""
    merges, hops = tour.order.merges, tour.order.hops
    if not merges and not tour.lost:
        return UNSET
    ended = [
        HopEnd(it.hop, it.device, it.status, it.reason[:LABEL])
        for it in tour.reports
        if (it.hop >= tour.wave.start if merges else it.status != "done" or it.device != hops[it.hop])
    ]
    return TourTold(tuple(ended[-ENDED:]), min(merges, MOST))
