"""Arrangers of one's own, as a user would write them, right and wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from hierarchy.arrangers.roll import Roll, Turn
from hierarchy.arranging.arrangement import ArrangeContext, Arranged, Candidates, ClientSet


class Pairs(msgspec.Struct, frozen=True):
    """The devices of the first site in pairs, as many as the schedule asks for."""

    backwards: bool = False

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> list[ClientSet]:
        site = candidates.sites[0]
        devices = sorted(candidates.reach[site], reverse=self.backwards)
        pairs = [tuple(devices[start : start + 2]) for start in range(0, len(devices), 2)]
        return [ClientSet(site, pair) for pair in pairs[: context.sets]]


class WrittenBefore(msgspec.Struct, frozen=True):
    """One set for each site, in the words of arrangers that were written before `hierarchy.arranging`."""

    def arrange(self, roll: Roll, turn: Turn) -> list[ClientSet]:
        sites = [site for site in roll.sites if roll.reach[site]]
        return [ClientSet(site, tuple(d for d in roll.devices if d in roll.reach[site])) for site in sites[: turn.sets]]


class Counting(msgspec.Struct, frozen=True):
    """Remembers how often it was called."""

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> Arranged:
        (calls,) = context.memo.get("calls", (0,))
        return Arranged((ClientSet(candidates.sites[0], (candidates.devices[calls],)),), {"calls": (calls + 1,)})


class Saying(msgspec.Struct, frozen=True):
    """Returns what its settings say."""

    sets: Any = None
    memo: Any = None

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> Any:
        if not isinstance(self.sets, list):
            return self.sets
        sets: Any = tuple(each if isinstance(each, str) else ClientSet(each[0], tuple(each[1])) for each in self.sets)
        return sets if self.memo is None else Arranged(sets, self.memo)


class Mute(msgspec.Struct, frozen=True):
    """Has nothing to say."""
