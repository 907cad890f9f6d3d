"""Arrangers of one's own, as a user would write them, right and wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from hierarchy.arranging.arrangement import Arranged, ClientSet, Roll, Turn


class Pairs(msgspec.Struct, frozen=True):
    """The devices of the first site in pairs, as many as the schedule asks for."""

    backwards: bool = False

    def arrange(self, roll: Roll, turn: Turn) -> list[ClientSet]:
        site = roll.sites[0]
        devices = sorted(roll.reach[site], reverse=self.backwards)
        pairs = [tuple(devices[start : start + 2]) for start in range(0, len(devices), 2)]
        return [ClientSet(site, pair) for pair in pairs[: turn.sets]]


class Counting(msgspec.Struct, frozen=True):
    """Remembers how often it was called."""

    def arrange(self, roll: Roll, turn: Turn) -> Arranged:
        (calls,) = turn.memo.get("calls", (0,))
        return Arranged((ClientSet(roll.sites[0], (roll.devices[calls],)),), {"calls": (calls + 1,)})


class Saying(msgspec.Struct, frozen=True):
    """Says what it is told to."""

    sets: Any = None
    memo: Any = None

    def arrange(self, roll: Roll, turn: Turn) -> Any:
        if not isinstance(self.sets, list):
            return self.sets
        sets: Any = tuple(each if isinstance(each, str) else ClientSet(each[0], tuple(each[1])) for each in self.sets)
        return sets if self.memo is None else Arranged(sets, self.memo)


class Mute(msgspec.Struct, frozen=True):
    """Has nothing to say."""
