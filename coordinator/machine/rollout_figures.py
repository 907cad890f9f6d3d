"""What a coordinator tells Prometheus of its rollouts: their status, and how many devices are how far."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from sojourn.metrics.catalogue import RELEASE_DEVICES, ROLLOUT
from sojourn.protocol.release import ReleaseState, RolloutStatus

if TYPE_CHECKING:
    from coordinator.machine.rollouts import Rollouts
    from coordinator.rollout_records import LineState
    from sojourn.metrics.reading import Reading

LINES = 20
"""Model lines that are told apart: those with the newest ones."""
ASKED = "asked"
"""The state of a device that has not answered the order that it should be under."""
STATES = (ASKED, *get_args(ReleaseState))


class RolloutFigures:
    """Rollouts by status, and their devices by state: counted anew when something of a line has changed."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._counts: dict[str, tuple[int, LineState, Counter[str]]] = {}
        """By line, as of which revision of which rollout, and how many devices are in each state."""

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # nothing here has a date
        """Put what is known now."""
        for line in list(self._rollouts.durable.lines.values())[-LINES:]:
            into.put_one_of(ROLLOUT, get_args(RolloutStatus), line.status, line.line)
            counts = self._counted(line)
            for state in STATES:
                into.put(RELEASE_DEVICES, counts[state], line.line, state)

    def _counted(self, line: LineState) -> Counter[str]:
        revision, known = self._rollouts.revisions[line.line], self._counts.get(line.line)
        if known is None or known[0] != revision or known[1] is not line:
            known = revision, line, self._count(line)
            self._counts[line.line] = known
        return known[2]

    def _count(self, line: LineState) -> Counter[str]:
        forward, back = line.cargo.read.serial, line.back.read.serial
        found: Counter[str] = Counter()
        for device in line.members:
            report = self._rollouts.newest(line, device)
            answered = report is not None and report.serial >= (back if device in line.aside else forward)
            found[report.state if report and answered else ASKED] += 1
        return found
