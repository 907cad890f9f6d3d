"""What a job's mandate says: made of its file and its kit, by whoever signs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.rounds.orders import all_tasks
from sojourn.errors import ConfigError
from sojourn.model.lengths import spec_of_vector
from sojourn.parts import ClassCountEstimator, EdgeCloud
from sojourn.protocol.limits import LABEL
from sojourn.protocol.mandate import NAMED, Mandate

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobSettings
    from coordinator.strategies import Strategy
    from sojourn.protocol.spec import Kit

DAY = 86_400.0
FLOAT32 = 4
LAST = 30 * DAY
"""Seconds that a mandate holds unless told."""
LONGEST = 366 * DAY
"""No mandate holds longer: for so long devices remember what was withdrawn."""
SLACK, MORE = 3, 20
"""A device may be visited so many times as often as a job without failures has it, and so many times more: visits are
lost and tried again, and devices are estimated again."""
FIGURES = 4096
"""As many numbers as a message can carry of a device's data."""
_SPAN = re.compile(r"(?P<number>\d{1,5})(?P<unit>[hdw])")
_UNITS = {"h": 3600.0, "d": DAY, "w": 7 * DAY}


@dataclass(frozen=True)
class Terms:
    """What a signer says besides the job: for how many seconds, where, what for, and how often."""

    operator: str
    seconds: float = LAST
    sites: tuple[str, ...] = ()
    purpose: str = ""
    visits: int | None = None


def span_of(text: str) -> float:
    """The seconds in a text such as 12h, 30d or 8w."""
    found = _SPAN.fullmatch(text.strip())
    seconds = int(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not 0 < seconds <= LONGEST:
        raise ConfigError(f"--for {text!r} is no span of time of at most a year: write 12h, 30d or 8w")
    return seconds


def mandate_for(  # all that a mandate is made of
    job: JobSettings, kit: Kit, digest: bytes, terms: Terms, *, fleet: str, now: float, after: int
) -> Mandate:
    """The mandate that lets a job be done as its file says, and nothing else; `after` is the number of its last one."""
    strategy, estimator = job.parts(), job.parts().estimator
    largest = 4 * (kit.model.size + len(kit.model.tensors))
    tells = isinstance(estimator, ClassCountEstimator) or getattr(estimator, "where", "server") == "device"
    return Mandate(
        fleet=fleet,
        job=job.name,
        serial=max(int(now * 1000), after + 1),
        operator=terms.operator,
        purpose=terms.purpose,
        issued=now,
        ends=now + terms.seconds,
        kit=digest,
        model=job.model.name[:LABEL],
        classes=tuple(name[:LABEL] for name in kit.classes[: NAMED if len(kit.classes) <= NAMED else 20]),
        class_count=len(kit.classes),
        sites=terms.sites,
        tasks=all_tasks(job),
        rounds=job.all_rounds,
        visits=terms.visits or _visits(job),
        returns=dict.fromkeys(("model", *strategy.objective.returns), largest) | _told(strategy, kit),
        figures=FIGURES if tells else 0,
    )


def _told(strategy: Strategy, kit: Kit) -> dict[str, int]:
    """How many bytes the vectors have that a device tells of itself."""
    objective = strategy.objective
    return {name: FLOAT32 * spec_of_vector(name, objective, kit).size for name in objective.tells}


def _visits(job: JobSettings) -> int:
    schedule = job.parts().schedule
    waves = schedule.edge_merges if isinstance(schedule, EdgeCloud) else getattr(schedule, "passes", 1)
    return min(SLACK * job.all_rounds * waves + MORE, 1 << 40)
