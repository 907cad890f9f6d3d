"""A job file: what to train, on what, by which strategy. Typed and closed."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from coordinator.jobs.compatibility import objections
from coordinator.jobs.goal import Goal, goal_of
from coordinator.jobs.start import PREFIX, read_start
from coordinator.jobs.task_settings import TaskSettings, lacking_without_test, objections_to_task
from coordinator.jobs.tour_settings import GateSettings, TourSettings, gate_table
from coordinator.strategies import Strategy, named
from coordinator.strategies.strategy import FORMS
from sojourn.data.scaling import scaling_of
from sojourn.data.source import DataSettings
from sojourn.errors import ConfigError
from sojourn.parts import Count, Encoding, Natural, NotNegative, fixed_rounds
from sojourn.protocol.limits import MOST_FIGURE
from sojourn.protocol.spec import MOST_COLUMNS, ColumnName, Shape, TableSpec
from sojourn.protocol.topics import check_name
from sojourn.settings import Texts, named_table, parse, validated

if TYPE_CHECKING:
    from pathlib import Path

TORCHVISION = "torchvision:"
"""How the names of torchvision's models begin."""
DIGITS = "digits"
"""The name of the set that is built in: scikit-learn's digits."""
FILE_KEYS = {"data": ("test", "exemplars"), "model": ("path", "start")}
"""The keys of a job that name files on the coordinator's machine, by table."""
ROUNDS = 10
"""Unless a job says how many, or its schedule does."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which model, what it starts from, and which of its tensors are trained."""

    name: str = "mlp"
    """`mlp`, `cnn`, `resnet8`, `gru`, `autoencoder`, one of torchvision's such as `torchvision:mobilenet_v3_small`, or
    a class of one's own as `package.module:Class`."""
    options: dict[str, Any] = {}
    """What the model is made with, by name. Example: `{ hidden = [128, 64] }`."""
    path: str | None = None
    """A folder on the coordinator's machine in which a class of one's own is looked for, too. Example: `"nets"`."""
    start: str | None = None
    """Weights to start from; without it, random ones. A file on the coordinator's machine (safetensors, a state dict of
    torch, an ONNX file of `job export`), or the model of an earlier job, `job:NAME`, `job:NAME@12` or `job:NAME@best`.
    Example: `"job:pets@best"`."""
    batchnorm: Literal["merge", "frozen"] = "merge"
    """The running statistics of BatchNorm layers: trained, handed on and merged like the model, or `frozen` as they are
    at the start. Those of layers whose parameters are frozen are so in any case. Example: `"frozen"`."""
    new_head: bool | tuple[str, ...] = False
    """Whether the last layer starts anew instead of from `start`; or patterns of names of tensors that do. Example:
    `true`."""
    trains: tuple[str, ...] = ()
    """Patterns of names of tensors that are trained, all unless told; the others stay as they are and travel to a
    device once. Example: `["classifier.*"]`."""
    source: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Where the weights in `start` come from, for the card of a release. Example:
    `"torchvision, MobileNet_V3_Small_Weights.IMAGENET1K_V1"`."""
    licence: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Under which licence they are, for the card of a release. Example: `"BSD-3-Clause"`."""
    trunk: Literal["auto", "whole"] = "auto"
    """Where the first layers are frozen, devices run them once and train on what they made (`auto`); or the model stays
    in one piece (`whole`), which agents from before 0.6.0 can train too."""

    @property
    def own(self) -> bool:
        """Whether it is a class of one's own."""
        return ":" in self.name and not self.name.startswith(TORCHVISION)

    @property
    def start_file(self) -> str | None:
        """The file with the weights to start from, if it is one."""
        return self.start if self.start is not None and not self.start.startswith(PREFIX) else None

    @property
    def names_frozen(self) -> bool:
        """Whether the kit says by name what is in it and not trained, so that it can be told from the model's code."""
        return bool(self.trains) or self.start_file is not None


class JobData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator knows of the data. Files are on its machine, in any form that a device reads."""

    test: str | None = None
    """The test set; exemplars are cut from it unless they have a file of their own. `digits` is built in. Example:
    `"test"`."""
    exemplars: str | None = None
    """A small labelled set that everybody may see; unless told it is cut from the test set. Example: `"public.npz"`."""
    exemplars_per_class: Count = 10
    """How many samples of each class are cut from the test set, which is not tested on them. Fewer, with a warning,
    where they would be more than half of it."""
    classes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)] | None = None
    """The names of the classes, in the order of the model's outputs; those in the test set unless told. Example:
    `["cat", "dog"]`."""
    input: Shape | None = None
    """The shape of one sample, channels first; as in the test set unless told. Images are brought to this size.
    Example: `[3, 32, 32]`."""
    dtype: Literal["float32", "int64"] = "float32"
    """Numbers as they are (`float32`), or whole numbers such as words (`int64`)."""
    mean: tuple[float, ...] | None = None
    """What is taken off the raw values, one number or one for each channel; from the exemplars unless told. Example:
    `[127.5]`."""
    std: tuple[float, ...] | None = None
    """What they are then divided by, one number or one for each channel; from the exemplars unless told. Example:
    `[64.0]`."""
    label: str | int | None = None
    """The label column of these CSV files, as in a device's `[data]`. Example: `"species"`."""
    header: bool | None = None
    """Whether the first row of these CSV files names their columns; told by its content unless said. Example:
    `true`."""
    scale: str | None = None
    """Brings the values of these files to another scale. Example: `"0..255 to 0..1"`."""
    class_names: tuple[str, ...] = ()
    """What integer labels in these files mean, if they do not say it themselves. Example: `["cat", "dog"]`."""
    ignore: tuple[str | int, ...] = ()
    """Columns of these CSV files that are not read, as in a device's `[data]`. Example: `["id"]`."""
    time: str | int | None = None
    """The column of these CSV files with the time of each row of a series. Example: `"time"`."""
    series: str | int | None = None
    """The column of these CSV files that tells several series apart. Example: `"machine"`."""
    columns: Annotated[tuple[ColumnName, ...], msgspec.Meta(max_length=MOST_COLUMNS)] | None = None
    """The columns of a table with the values of a sample, in the model's order. By default those in the header of the
    test set. Every device matches the columns of its own file with these names. Example: `["temp", "rpm"]`."""
    by_position: bool = False
    """Accept CSV files without a header, here and on devices, and NPZ tables without column names: their columns are
    taken in the job's order, which Sojourn cannot check. Example: `true`."""
    range: tuple[float, float] | None = None
    """The least and the largest value that devices may have; one with others declines. Example: `[0, 16]`."""

    def __post_init__(self) -> None:
        if self.scale is not None:
            scaling_of(self.scale)
        if self.range is not None and not -MOST_FIGURE <= self.range[0] < self.range[1] <= MOST_FIGURE:
            raise ValueError("range is the least and the largest value, such as [0, 16]")

        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError("columns has a name twice")

    @property
    def asked(self) -> TableSpec | None:
        """By which columns the job's own files are read: those that it lists, in their order."""
        if self.columns is None:
            return None
        return TableSpec(self.columns, self.label_name, by_position=True)

    @property
    def label_name(self) -> str | None:
        """The label column by its name, if the job file gives one."""
        by_place = not isinstance(self.label, str) or self.label in ("first", "last") or self.label.isdecimal()
        return None if by_place else str(self.label)

    def files(self, path: str) -> DataSettings:
        """How one of the job's files is read."""
        return DataSettings(
            path=path,
            label=self.label,
            header=self.header,
            scale=self.scale,
            class_names=self.class_names,
            ignore=self.ignore,
            time=self.time,
            series=self.series,
        )


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many devices must be connected before the first round, and how long the job waits for devices.

    Later rounds need only as many as their arrangement does. A job that has waited this long, before any round, fails.
    It also fails after three rounds in a row without a result, unless all devices only declined for now (hours, heat).
    """

    devices: Count = 1
    """How many devices must be connected before the first round."""
    timeout: NotNegative = 86_400.0
    """How many seconds the job waits for devices before it fails, one day by default; 0: no limit."""


def kind_table(kind: str) -> dict[str, Any]:
    """The table that the kind of a task stands for."""
    return {"kind": kind}


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A job file."""

    texts: ClassVar[Texts] = {**dict.fromkeys(("model", *FORMS), named_table), "task": kind_table, "gate": gate_table}
    name: str
    """The job's name, once at its coordinator: a-z, 0-9 and '-'. Example: `"first"`."""
    rounds: Count | None = None
    """How many rounds; 10 unless told, or as many as the schedule says. Example: `20`."""
    target: float | str | None = None
    """Stop early when the test set says so: a number of the task's main figure, which of a classification is the
    accuracy from 0 to 1, or a figure with `>=` or `<=`, such as `"rmse <= 0.5"`. Example: `0.95`."""
    seed: Natural = 0
    """Where all randomness comes from: the same seed gives the same bits."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    """How many threads every device trains with, for the same bits everywhere; unless told, as many as its owner
    allows. Example: `1`."""
    encoding: Encoding = "float32"
    """How numbers of models travel: exactly, or rounded to a half (`float16`) or a quarter (`int8`) of the bytes."""
    strategy: str = "visit"
    """One of those that `sojourn strategies` lists; it sets all keys of the tables below that the job does not."""
    model: ModelSettings = ModelSettings()
    """Which model: a table, or its name alone. Example: `"cnn"`."""
    task: TaskSettings = TaskSettings()
    """What is learnt: a table, or its kind alone. Example: `"regression"`."""
    data: JobData = JobData()
    """What the coordinator knows of the data."""
    fleet: FleetSettings = FleetSettings()
    """How many devices are needed."""
    training: dict[str, Any] = {}
    """How a device trains."""
    tours: TourSettings = TourSettings()
    """What happens when a visit or a whole site fails."""
    gate: GateSettings = GateSettings()
    """What results must pass, and how much one device may weigh: a table, or `enforce`, `report` or `off` alone.
    Example: `"report"`."""
    estimator: dict[str, Any] = {}
    """What is found out about devices' data: a table, or a name alone. Example: `"signature"`."""
    arranger: dict[str, Any] = {}
    """Which devices form which tours: a table, or a name alone. Example: `"visit"`."""
    schedule: dict[str, Any] = {}
    """Which tours run in a round, and when models merge: a table, or a name alone. Example: `"every-round"`."""
    objective: dict[str, Any] = {}
    """What a device minimises: a table, or a name alone. Example: `"prox"`."""
    aggregator: dict[str, Any] = {}
    """How models become the next one: a table, or a name alone. Example: `"yogi"`."""
    finisher: dict[str, Any] = {}
    """What the coordinator makes of all models at once, after a round: a table, or a name alone. Example: `"none"`."""

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
            "finisher": self.finisher,
            "training": self.training,
        }
        return named(self.strategy, where).changed({part: it for part, it in changes.items() if it}, where)

    @cached_property
    def goal(self) -> Goal | None:
        """What ends the job early, if something does."""
        return None if self.target is None else goal_of(self.target, self.task.kind, "job")

    @property
    def all_rounds(self) -> int:
        """How many rounds there are: the schedule's number, if it has one."""
        return fixed_rounds(self.parts().schedule) or self.rounds or ROUNDS


@lru_cache(64)
def read_job(text: str, where: str, folder: Path | None = None) -> JobSettings:
    """The job in a TOML text, checked as far as it can be without data; file names are taken relative to `folder`."""
    job = validated(parse(text, where), JobSettings, where)
    check_name(job.name, f"{where}: the job's name")
    start = read_start(job.model.start, where) if job.model.start is not None else None
    if start is not None and start.job == job.name:
        raise ConfigError(f"{where}: model.start names the job itself; to give it more rounds, continue it")
    if job.model.path is not None and not job.model.own and not job.task.own_loss:
        raise ConfigError(
            f"{where}: model.path is where a class of one's own is, or a loss: name that class as module:Class"
        )
    if job.model.new_head and job.model.start is None:
        raise ConfigError(f"{where}: model.new_head is about weights to start from: name them in model.start")
    strategy = job.put_together(where)
    if reasons := objections(strategy, job):
        raise ConfigError(f"{where}: {'; '.join(reasons)}")
    if strategy.estimator.exemplars and not (job.data.test or job.data.exemplars):
        raise ConfigError(
            f"{where}: the strategy {job.strategy!r} needs exemplars: name a file in data.exemplars or data.test"
        )
    shown = job.data.test or job.data.exemplars
    if strategy.estimator.by_class and job.task.kind not in ("classification", "multilabel") and not shown:
        raise ConfigError(
            f"{where}: the strategy {job.strategy!r} knows devices by strata, which are found in exemplars: name a "
            "file in data.exemplars or data.test"
        )
    if job.target is not None:
        goal_of(job.target, job.task.kind, where)
    if wrong := [*objections_to_task(job.task, job.data)]:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")
    if not job.data.test and (lacking := lacking_without_test(job.task, job.data)):
        raise ConfigError(f"{where}: without data.test, {lacking} must be given")
    return _with_whole_names(job, folder) if folder else job


def _with_whole_names(job: JobSettings, folder: Path) -> JobSettings:
    """The job with names of files that mean the same wherever they are read."""

    def resolve(name: str) -> str:
        return str((folder / name).resolve())

    data = {key: resolve(name) for key in FILE_KEYS["data"] if (name := getattr(job.data, key)) not in (None, DIGITS)}
    model = {key: resolve(name) for key, name in (("path", job.model.path), ("start", job.model.start_file)) if name}
    return msgspec.structs.replace(
        job, data=msgspec.structs.replace(job.data, **data), model=msgspec.structs.replace(job.model, **model)
    )
