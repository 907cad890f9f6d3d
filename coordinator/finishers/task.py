"""What a finisher is given, and what it gives back.

State goes in and comes out, as it does for an aggregator; but its vectors have any length, and those that its part
`sends` travel to the devices with the next round. Members come in plan order, and each is read when it is asked for: a
finisher that needs a part of every model has one of them in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import JobError

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobSettings
    from sojourn.model.exemplars import Exemplars
    from sojourn.protocol.mandate_messages import Normalisation
    from sojourn.protocol.spec import Kit

Vector: TypeAlias = NDArray[np.float32]
State: TypeAlias = dict[str, Vector]
Load: TypeAlias = Callable[[], Vector]
FLOAT32 = 4
MEGABYTE = 1 << 20


@dataclass(frozen=True, eq=False)
class MemberModel:
    """A model that came home: by the device that trained it last, with the samples that it has seen.

    load: reads the model. told: reads what its device told of itself (`ObjectivePart.tells`), by name.
    """

    name: str
    samples: float
    load: Load
    told: Mapping[str, Load] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FinishTask:
    """What a finisher works on.

    mean: what the aggregator made of the members. state: what the finisher gave back after the round before, or began
    with. seed: of this job and this round. exemplars: the job's public samples, if it has any. say: is told each step
    as it begins, in words.
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
    say: Callable[[str], None] = lambda _step: None

    def check_room(self, megabytes: float, where: str) -> None:
        """Refuse to hold all members in memory where they take more room than the setting `where` allows."""
        needed = FLOAT32 * self.kit.model.size * len(self.members) / MEGABYTE
        if needed > megabytes:
            raise JobError(
                f"{len(self.members)} models of {self.kit.model.size:,} numbers take {needed:,.0f} MB, and {where} = "
                f"{megabytes:g} allows less: raise it, or let fewer devices take part (arranger.fraction)"
            )


@dataclass(frozen=True, eq=False)
class Finished:
    """What a finisher came to.

    model: the round's model; None leaves the aggregator's. state: its vectors for the next round, by name; those that
    it does not name are kept as they were. voters: whether the members' own models are kept, since they are the result.
    notes: what people should read with the round.
    """

    model: Vector | None = None
    state: State = field(default_factory=dict)
    voters: bool = False
    notes: tuple[str, ...] = ()
