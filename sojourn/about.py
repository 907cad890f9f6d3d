"""What a line of a log is about: the same words, and the same ids, in the logs of all roles.

A visit's id is `RUN/ROUND/TOUR/HOP`, a tour's is `RUN/ROUND/TOUR`; a run is a job, by its name. Coordinator, edge
server and agent make them of the same numbers, which travel with every message on a visit. Messages, records and CSV
files count tours and hops from 0; what people read counts them from 1 (`ordinal`).
"""

from __future__ import annotations

from typing import Any

import msgspec


def ordinal(number: int) -> int:
    """The number of a tour or of a hop as people read it."""
    return number + 1


class About(msgspec.Struct, frozen=True):
    """As much as is known of what a line is about; nothing is made into text before somebody writes the line.

    attempt: the tour's fencing number, and the visit's own, where a hop may be tried more than once.
    """

    run: str = ""
    round: int | None = None
    tour: int | None = None
    hop: int | None = None
    attempt: tuple[int, int] | None = None
    device: str = ""
    site: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """What is known, by the names that a log has for it."""
        found = {
            "run": self.run or None,
            "round": self.round,
            "tour": self._path(self.tour),
            "visit": self._path(self.tour, self.hop),
            "attempt": self.attempt and f"{self.attempt[0]}.{self.attempt[1]}",
            "device": self.device or None,
            "site": self.site or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _path(self, *numbers: int | None) -> str | None:
        known = [ordinal(number) for number in numbers if number is not None]
        if self.round is None or len(known) < len(numbers):
            return None
        return "/".join([self.run, *map(str, (self.round, *known))])


NOTHING = About()
"""What a line is about that is about the node as a whole."""
