"""Custom arrangers, as a user would write them, right and wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from hierarchy.arranging.arrangement import ArrangeContext, Arranged, Candidates, ClientSet


class Pairs(msgspec.Struct, frozen=True):
    """Pairs of the devices of the first site, as many as the schedule asks for."""

    backwards: bool = False

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> list[ClientSet]:
        site = candidates.sites[0]
        devices = sorted(candidates.reach[site], reverse=self.backwards)
        pairs = [tuple(devices[start : start + 2]) for start in range(0, len(devices), 2)]
        return [ClientSet(site, pair) for pair in pairs[: context.sets]]


class Counting(msgspec.Struct, frozen=True):
    """Remembers how often it was called."""

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> Arranged:
        (calls,) = context.memo.get("calls", (0,))
        return Arranged((ClientSet(candidates.sites[0], (candidates.devices[calls],)),), {"calls": (calls + 1,)})


class FromSettings(msgspec.Struct, frozen=True):
    """Returns its settings."""

    sets: Any = None
    memo: Any = None

    def arrange(self, candidates: Candidates, context: ArrangeContext) -> Any:
        if not isinstance(self.sets, list):
            return self.sets
        sets: Any = tuple(each if isinstance(each, str) else ClientSet(each[0], tuple(each[1])) for each in self.sets)
        return sets if self.memo is None else Arranged(sets, self.memo)


class WithoutArrange(msgspec.Struct, frozen=True):
    """Has no method `arrange`."""
