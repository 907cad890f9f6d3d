"""A job file: what to train, on what, by which strategy. Typed and closed."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from coordinator.jobs.compatibility import objections
from coordinator.jobs.tour_settings import GateSettings, TourSettings
from coordinator.strategies import Strategy, named
from sojourn.errors import ConfigError
from sojourn.parts import Count, Encoding, Natural, NotNegative, fixed_rounds
from sojourn.protocol.spec import Shape
from sojourn.protocol.topics import check_name
from sojourn.settings import parse, validated

if TYPE_CHECKING:
    from pathlib import Path

DIGITS = "digits"
"""The name of the set that is built in: scikit-learn's digits."""
ROUNDS = 10
"""Unless a job says how many, or its schedule does."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which model: `mlp`, `cnn`, `resnet8`, or a class of one's own as `package.module:Class`."""

    name: str = "mlp"
    options: dict[str, Any] = {}


class JobData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator knows of the data. Files are on its machine, in any form that a device reads."""

    test: str | None = None
    exemplars: str | None = None
    exemplars_per_class: Count = 10
    classes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)] | None = None
    input: Shape | None = None
    dtype: Literal["float32", "int64"] = "float32"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many devices must be here before the first round, and how many seconds to wait for devices (0: for ever).

    Later rounds need only as many as their arrangement does. A job ends when it has waited for so long, at whichever
    round, and nobody came who lets it go on.
    """

    devices: Count = 1
    patience: NotNegative = 0.0


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A job file."""

    name: str
    rounds: Count | None = None
    target: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seed: Natural = 0
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    encoding: Encoding = "float32"
    strategy: str = "visit"
    model: ModelSettings = ModelSettings()
    data: JobData = JobData()
    fleet: FleetSettings = FleetSettings()
    training: dict[str, Any] = {}
    tours: TourSettings = TourSettings()
    gate: GateSettings = GateSettings()
    estimator: dict[str, Any] = {}
    arranger: dict[str, Any] = {}
    schedule: dict[str, Any] = {}
    objective: dict[str, Any] = {}
    aggregator: dict[str, Any] = {}

    def parts(self) -> Strategy:
        """The named strategy with this job's changes."""
        return self._parts

    @cached_property
    def _parts(self) -> Strategy:
        # Asked for at every turn, always the same, and slower to put together than all else that is done for a tour.
        return self.put_together("job")

    def put_together(self, where: str) -> Strategy:
        """The strategy, or a ConfigError that names `where` a mistake was found."""
        changes = {
            "estimator": self.estimator,
            "arranger": self.arranger,
            "schedule": self.schedule,
            "objective": self.objective,
            "aggregator": self.aggregator,
            "training": self.training,
        }
        return named(self.strategy, where).changed({part: it for part, it in changes.items() if it}, where)

    @property
    def all_rounds(self) -> int:
        """How many rounds there are: the schedule's number, if it has one."""
        return fixed_rounds(self.parts().schedule) or self.rounds or ROUNDS


@lru_cache(64)
def read_job(text: str, where: str, folder: Path | None = None) -> JobSettings:
    """The job in a TOML text, checked as far as it can be without data; file names are taken relative to `folder`."""
    job = validated(parse(text, where), JobSettings, where)
    check_name(job.name, f"{where}: the job's name")
    strategy = job.put_together(where)
    if reasons := objections(strategy, job):
        raise ConfigError(f"{where}: {'; '.join(reasons)}")
    if strategy.estimator.exemplars and not (job.data.test or job.data.exemplars):
        raise ConfigError(
            f"{where}: the strategy {job.strategy!r} needs exemplars: name a file in data.exemplars or data.test"
        )
    if not job.data.test and not (job.data.classes and job.data.input):
        raise ConfigError(f"{where}: without data.test, both data.classes and data.input must be given")
    return msgspec.structs.replace(job, data=_absolute(job.data, folder)) if folder else job


def _absolute(data: JobData, folder: Path) -> JobData:
    def resolve(name: str | None) -> str | None:
        return name if name in (None, DIGITS) else str((folder / name).resolve())

    return msgspec.structs.replace(data, test=resolve(data.test), exemplars=resolve(data.exemplars))
