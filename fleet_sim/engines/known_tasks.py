"""What visits of a task were like: how long a sample took, and how large the blobs were that they made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.work import Train, Trained
from fleet_sim.engines.engine import kit_of
from sojourn.node.machine import Did

if TYPE_CHECKING:
    from edge_agent.training.work import Warm
    from fleet_sim.engines.engine import Outcome

MOST = 256
"""So many tasks are known at a time; a job has one or two."""


@dataclass(frozen=True)
class KnownTask:
    """The last visit of a task: its seconds for each sample, and the sizes of its blobs."""

    per_sample: float
    sizes: tuple[int, ...]


class KnownTasks:
    """Tasks by the kit they use and what they ask for."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownTask] = {}

    def get(self, work: Train | Warm) -> KnownTask | None:
        """What is known of the task; None before its first visit has come back."""
        return self._known.get(_name(work)) if isinstance(work, Train) else None

    def learn(self, work: Train | Warm, outcome: Outcome) -> None:
        """Note how a visit went."""
        if not isinstance(work, Train) or not isinstance(outcome.event, Did):
            return
        trained = outcome.event.outcome
        if isinstance(trained, Trained):
            while len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            per_sample = trained.metrics.get("seconds", 0.0) / max(1, trained.samples)
            self._known[_name(work)] = KnownTask(per_sample, tuple(map(len, outcome.blobs.values())))


def _name(work: Train) -> bytes:
    return kit_of(work).digest + msgspec.msgpack.encode(work.visit.task)
