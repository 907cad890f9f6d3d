"""The inputs and results of a finisher.

State goes in and comes out, as for an aggregator, but its vectors have any length. Those that its part `sends` are sent
to devices with the next round. Members come in plan order, and each model is read when it is needed, so a finisher that
needs a part of every model has one of them in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.settings import JobSettings
from sojourn.errors import JobError
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.mandates import Normalisation
from sojourn.protocol.spec import Kit

Vector: TypeAlias = NDArray[np.float32]
State: TypeAlias = dict[str, Vector]
Load: TypeAlias = Callable[[], Vector]
FLOAT32 = 4
MEGABYTE = 1 << 20


@dataclass(frozen=True, eq=False)
class MemberModel:
    """A model that came back, with the name of the device that trained it last and its samples.

    load: reads the model. reported: reads what its device reported (`ObjectivePart.reports`), by name.
    """

    name: str
    samples: float
    load: Load
    reported: Mapping[str, Load] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FinishTask:
    """The inputs of a finisher.

    mean: the aggregator's model. state: what the finisher returned after the previous round, or its initial state.
    seed: for this job and round. exemplars: the job's public samples, if it has any. notify: receives a description of
    each step as it begins.
    """

    members: Sequence[MemberModel]
    mean: Vector
    kit: Kit
    job: JobSettings
    seed: int
    round: int = 1
    state: State = field(default_factory=dict)
    exemplars: Exemplars | None = None
    normalisation: Normalisation | None = None
    notify: Callable[[str], None] = lambda _step: None

    def check_room(self, megabytes: float, where: str) -> None:
        """Raise JobError if all members' models would take more memory than the setting `where` allows."""
        needed = FLOAT32 * self.kit.model.size * len(self.members) / MEGABYTE
        if needed > megabytes:
            raise JobError(
                f"{len(self.members)} models of {self.kit.model.size:,} numbers take {needed:,.0f} MB, and {where} = "
                f"{megabytes:g} allows less: raise it, or use fewer devices (arranger.fraction)"
            )


@dataclass(frozen=True, eq=False)
class Finished:
    """The result of a finisher.

    model: the round's model; None keeps the aggregator's. state: its vectors for the next round, by name; others are
    kept as they were. voters: whether the members' models are kept because they are the result. notes: messages for the
    round's report.
    """

    model: Vector | None = None
    state: State = field(default_factory=dict)
    voters: bool = False
    notes: tuple[str, ...] = ()
