"""A job file: the model and its start, the data, the task and the strategy; typed and closed."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec

from coordinator.jobs.compatibility import objections
from coordinator.jobs.goal import Goal, goal_of
from coordinator.jobs.settings_tables import (
    GateSettings,
    TaskSettings,
    TourSettings,
    gate_table,
    keys_without_test,
    objections_to_task,
)
from coordinator.strategies import DEFAULT_STRATEGY, Strategy, named
from coordinator.strategies.strategy import FORMS
from sojourn.data.source import DataSettings, parse_scaling
from sojourn.errors import ConfigError, JobError
from sojourn.parts import Count, Encoding, Natural, NotNegative, Ring
from sojourn.protocol.limits import MAX_COUNT, MAX_NUMBER
from sojourn.protocol.spec import MOST_COLUMNS, ColumnName, TableSpec
from sojourn.protocol.task import Shape
from sojourn.protocol.topics import check_name
from sojourn.settings import Texts, dumps, named_table, parse, validated, with_tables

# A job starts from a new model, from weights in a file, or from the model of an earlier job, written as `job:NAME` or
# `job:NAME@ROUND`.

PREFIX = "job:"
BEST: Literal["best"] = "best"
FILES = (".safetensors", ".pt", ".pth", ".bin", ".onnx")
"""The extensions of files with weights."""


class JobStart(NamedTuple):
    """The model of an earlier job: of a round, of the best round, or of the newest one (None)."""

    job: str
    round: int | Literal["best"] | None = None


def read_start(text: str, where: str) -> JobStart | None:
    """Return the earlier job that a job file names, or None if it names a file; ConfigError explains the form."""
    name, at, number = text.removeprefix(PREFIX).partition("@")
    how = (
        f'{where}: model.start = "{text[:100]}": write "job:NAME", "job:NAME@12" for a round, or "job:NAME@best"; or a '
        f"file with weights, {', '.join(FILES[:-1])} or {FILES[-1]}"
    )
    if not text.startswith(PREFIX):
        if PurePath(text).suffix not in FILES:
            raise ConfigError(how)
        return None
    check_name(name, f"{where}: the job in model.start")
    if not at:
        return JobStart(name)
    if number == BEST:
        return JobStart(name, BEST)
    if not (number.isascii() and number.isdigit() and len(number) <= 13 and 0 < int(number) <= MAX_COUNT):
        raise ConfigError(how)
    return JobStart(name, int(number))


TORCHVISION = "torchvision:"
"""The prefix of the names of torchvision's models."""
DIGITS = "digits"
"""The name of the built-in data set: scikit-learn's digits."""
FILE_KEYS = {"data": ("test", "exemplars"), "model": ("path", "start")}
"""The keys of a job that name files on the coordinator's machine, by table."""
ROUNDS = 10
"""The default number of rounds, if neither the job nor its schedule sets one."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model, its start weights, and which of its tensors are trained."""

    name: str = "mlp"
    """`mlp`, `cnn`, `resnet8`, `gru`, `autoencoder`, a model of torchvision such as `torchvision:mobilenet_v3_small`,
    or a custom class as `package.module:Class`.
    """
    options: dict[str, Any] = {}
    """The arguments of the model, by name. Example: `{ hidden = [128, 64] }`."""
    path: str | None = None
    """A folder on the coordinator's machine that is also searched for a custom class. Example: `"nets"`."""
    start: str | None = None
    """Weights to start from; random by default. A file on the coordinator's machine (safetensors, a state dict of
    torch, an ONNX file of `job export`), or the model of an earlier job, `job:NAME`, `job:NAME@12` or `job:NAME@best`.
    Example: `"job:pets@best"`.
    """
    batchnorm: Literal["merge", "frozen"] = "merge"
    """The running statistics of BatchNorm layers: trained, passed on and merged like the model (`merge`), or kept as
    they are at the start (`frozen`). Those of layers with frozen parameters are always frozen. Example: `"frozen"`.
    """
    new_head: bool | tuple[str, ...] = False
    """Whether the last layer starts with random weights instead of those of `start`; or patterns of the names of
    tensors that do. Example: `true`.
    """
    trains: tuple[str, ...] = ()
    """Patterns of the names of tensors that are trained; all by default. The others stay as they are and are sent to a
    device once. Example: `["classifier.*"]`.
    """
    source: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The source of the weights in `start`, for the card of a release. Example: `"torchvision,
    MobileNet_V3_Small_Weights.IMAGENET1K_V1"`.
    """
    licence: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The licence of the weights in `start`, for the card of a release. Example: `"BSD-3-Clause"`."""
    trunk: Literal["auto", "whole"] = "auto"
    """If the first layers are frozen, devices run them once and train on their outputs (`auto`), or run the whole model
    in each step (`whole`).
    """

    @property
    def custom(self) -> bool:
        """Whether the model is a custom class."""
        return ":" in self.name and not self.name.startswith(TORCHVISION)

    @property
    def start_file(self) -> str | None:
        """The file with the start weights, if `start` names a file."""
        return self.start if self.start is not None and not self.start.startswith(PREFIX) else None

    @property
    def names_frozen(self) -> bool:
        """Whether the kit names its frozen tensors."""
        return bool(self.trains) or self.start_file is not None


class JobData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The coordinator's public data. Files are on its machine, in any form that a device reads."""

    test: str | None = None
    """The test set; exemplars are cut from it unless they have their own file. `digits` is built in. Example: `"test"`.
    """
    exemplars: str | None = None
    """A small public labelled set; by default it is cut from the test set. Example: `"public.npz"`."""
    exemplars_per_class: Count = 10
    """How many samples of each class are cut from the test set and not tested on. Fewer, with a warning, if they would
    be more than half of it.
    """
    classes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)] | None = None
    """The names of the classes, in the order of the model's outputs; by default those in the test set. Example:
    `["cat", "dog"]`.
    """
    input: Shape | None = None
    """The shape of one sample, channels first; by default that of the test set. Images are resized to it. Example: `[3,
    32, 32]`.
    """
    dtype: Literal["float32", "int64"] = "float32"
    """The type of the inputs: unchanged numbers (`float32`), or whole numbers such as token ids (`int64`)."""
    mean: tuple[float, ...] | None = None
    """Subtracted from the raw values: one number or one for each channel; by default from the exemplars. Example:
    `[127.5]`.
    """
    std: tuple[float, ...] | None = None
    """Divides the values after `mean` is subtracted: one number or one for each channel; by default from the exemplars.
    Example: `[64.0]`.
    """
    label: str | int | None = None
    """The label column of these CSV files, as in a device's `[data]`. Example: `"species"`."""
    header: bool | None = None
    """Whether the first row of these CSV files has the names of their columns; by default detected from the content.
    Example: `true`.
    """
    scale: str | None = None
    """Converts the values of these files to another scale. Example: `"0..255 to 0..1"`."""
    class_names: tuple[str, ...] = ()
    """The names of the classes of integer labels in these files, if the files do not contain them. Example: `["cat",
    "dog"]`.
    """
    ignore: tuple[str | int, ...] = ()
    """Columns of these CSV files that are not read, as in a device's `[data]`. Example: `["id"]`."""
    time: str | int | None = None
    """The column of these CSV files with the time of each row of a series. Example: `"time"`."""
    series: str | int | None = None
    """The column of these CSV files that identifies the series of a row. Example: `"machine"`."""
    columns: Annotated[tuple[ColumnName, ...], msgspec.Meta(max_length=MOST_COLUMNS)] | None = None
    """The columns of a table with the values of a sample, in the model's order. By default those in the header of the
    test set. Every device matches the columns of its file with these names. Example: `["temp", "rpm"]`."""
    by_position: bool = False
    """Accept CSV files without a header, here and on devices, and NPZ tables without column names: their columns are
    taken in the job's order, which Sojourn cannot check. Example: `true`."""
    range: tuple[float, float] | None = None
    """The minimum and maximum value of devices' data; a device with other values declines. Example: `[0, 16]`."""

    def __post_init__(self) -> None:
        if self.scale is not None:
            parse_scaling(self.scale)
        if self.range is not None and not -MAX_NUMBER <= self.range[0] < self.range[1] <= MAX_NUMBER:
            raise ValueError("range must be the minimum and the maximum value, such as [0, 16]")
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError("columns lists a name twice")

    @property
    def listed_columns(self) -> TableSpec | None:
        """The columns by which the job's own files are read, if it lists them."""
        if self.columns is None:
            return None
        return TableSpec(self.columns, self.label_name, by_position=True)

    @property
    def label_name(self) -> str | None:
        """The label column by its name, if the job file names one."""
        by_place = not isinstance(self.label, str) or self.label in ("first", "last") or self.label.isdecimal()
        return None if by_place else str(self.label)

    def files(self, path: str) -> DataSettings:
        """Return the settings with which a file of the job is read."""
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
    """How many devices must be online before the first round, and how long the job waits for devices.

    Later rounds need only the devices of their arrangement. A job that has waited for the whole timeout before a round
    fails. It also fails after three consecutive rounds without a result, unless all devices only declined temporarily
    (hours, heat).
    """

    devices: Count = 1
    """How many devices must be online before the first round."""
    timeout: NotNegative = 86_400.0
    """How many seconds the job waits for devices before it fails, one day by default; 0: no limit."""


def kind_table(kind: str) -> dict[str, Any]:
    """Return the table for a task that is given only by its kind."""
    return {"kind": kind}


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A job file."""

    texts: ClassVar[Texts] = {**dict.fromkeys(("model", *FORMS), named_table), "task": kind_table, "gate": gate_table}
    name: str
    """The job's name, unique at its coordinator: a-z, 0-9 and '-'. Example: `"first"`."""
    rounds: Count | None = None
    """The number of rounds; by default 10, or the number that the schedule sets. Example: `20`."""
    target: float | str | None = None
    """Stop early when a metric on the test set reaches this value: a number for the task's main metric (for a
    classification the accuracy from 0 to 1), or a metric with `>=` or `<=`, such as `"rmse <= 0.5"`. Example: `0.95`.
    """
    seed: Natural = 0
    """The source of all randomness: the same seed gives the same bits."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    """The number of threads with which every device trains, for the same bits everywhere; by default as many as its
    owner allows. Example: `1`.
    """
    encoding: Encoding = "float32"
    """How model parameters are sent: exactly, or rounded to a half (`float16`) or a quarter (`int8`) of the bytes."""
    strategy: str = DEFAULT_STRATEGY
    """A strategy that `sojourn strategies` lists; it sets all keys of the tables below that the job does not set."""
    model: ModelSettings = ModelSettings()
    """The model: a table, or its name alone. Example: `"cnn"`."""
    task: TaskSettings = TaskSettings()
    """The task: a table, or its kind alone. Example: `"regression"`."""
    data: JobData = JobData()
    """The coordinator's public data."""
    fleet: FleetSettings = FleetSettings()
    """How many devices the job needs."""
    training: dict[str, Any] = {}
    """How a device trains."""
    tours: TourSettings = TourSettings()
    """How a failed visit or site is handled."""
    gate: GateSettings = GateSettings()
    """The checks that results must pass, and the maximum weight of a device: a table, or `enforce`, `report` or `off`
    alone. Example: `"report"`.
    """
    estimator: dict[str, Any] = {}
    """How devices' data is described to the arranger: a table, or a name alone. Example: `"signature"`."""
    arranger: dict[str, Any] = {}
    """Which devices form which tours: a table, or a name alone. Example: `"visit"`."""
    schedule: dict[str, Any] = {}
    """Which tours run in a round, and when models merge: a table, or a name alone. Example: `"every-round"`."""
    objective: dict[str, Any] = {}
    """What a device minimises: a table, or a name alone. Example: `"prox"`."""
    aggregator: dict[str, Any] = {}
    """How models are merged into the next one: a table, or a name alone. Example: `"yogi"`."""
    finisher: dict[str, Any] = {}
    """What the coordinator computes from all models of a round together: a table, or a name alone. Example: `"none"`.
    """

    def parts(self) -> Strategy:
        """Return the named strategy with this job's changes."""
        return self._parts

    @cached_property
    def _parts(self) -> Strategy:
        # Cached: it is needed in every turn, never changes, and takes longer to build than all other work for a tour.
        return self.build_strategy("job")

    def build_strategy(self, where: str) -> Strategy:
        """Return the strategy; a ConfigError names `where` a mistake was found."""
        changes = {part: given for part in (*FORMS, "training") if (given := getattr(self, part))}
        return named(self.strategy, where).changed(changes, where)

    @cached_property
    def goal(self) -> Goal | None:
        """The goal that ends the job early, if it has one."""
        return None if self.target is None else goal_of(self.target, self.task.kind, "job")

    @property
    def all_rounds(self) -> int:
        """The number of rounds: that of the schedule, if it sets one."""
        return self.parts().schedule.fixed_rounds or self.rounds or ROUNDS


@lru_cache(64)
def read_job(text: str, where: str, folder: Path | None = None) -> JobSettings:
    """Parse and check a job in a TOML text; file names are relative to `folder`."""
    job = validated(parse(text, where), JobSettings, where)
    check_name(job.name, f"{where}: the job's name")
    start = read_start(job.model.start, where) if job.model.start is not None else None
    if start is not None and start.job == job.name:
        raise ConfigError(f"{where}: model.start names the job itself; to give it more rounds, continue it")
    if job.model.path is not None and not job.model.custom and not job.task.custom_loss:
        raise ConfigError(
            f"{where}: model.path is the folder of a custom class or loss: name that class as module:Class"
        )
    if job.model.new_head and job.model.start is None:
        raise ConfigError(f"{where}: model.new_head needs start weights: name them in model.start")
    strategy = job.build_strategy(where)
    if reasons := objections(strategy, job):
        raise ConfigError(f"{where}: {'; '.join(reasons)}")
    files = job.data.test or job.data.exemplars
    if strategy.estimator.exemplars and not files:
        raise ConfigError(
            f"{where}: the strategy {job.strategy!r} needs exemplars: name a file in data.exemplars or data.test"
        )
    if strategy.estimator.by_class and job.task.kind not in ("classification", "multilabel") and not files:
        raise ConfigError(
            f"{where}: the strategy {job.strategy!r} describes devices by strata, which are computed from exemplars: "
            "name a file in data.exemplars or data.test"
        )
    if job.target is not None:
        goal_of(job.target, job.task.kind, where)
    if wrong := [*objections_to_task(job.task, job.data)]:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")
    if not job.data.test and (lacking := keys_without_test(job.task, job.data)):
        raise ConfigError(f"{where}: without data.test, {lacking} must be given")
    return _with_whole_names(job, folder) if folder else job


def _with_whole_names(job: JobSettings, folder: Path) -> JobSettings:
    """Return the job with absolute file names."""

    def resolve(name: str) -> str:
        return str((folder / name).resolve())

    data = {key: resolve(name) for key in FILE_KEYS["data"] if (name := getattr(job.data, key)) not in (None, DIGITS)}
    model = {key: resolve(name) for key, name in (("path", job.model.path), ("start", job.model.start_file)) if name}
    return msgspec.structs.replace(
        job, data=msgspec.structs.replace(job.data, **data), model=msgspec.structs.replace(job.model, **model)
    )


def continued(text: str, rounds: int | None, target: float | str | None, devices: int | None = None) -> str:
    """Return the job file with `rounds` in total, a `target`, and the number of `devices` that it needs to begin.

    None keeps a value; a target of 0 removes it. Raises JobError if the job's schedule has a fixed number of rounds.
    """
    job, table = read_job(text, "the job"), with_tables(parse(text, "the job"), JobSettings, "the job")
    schedule = job.parts().schedule
    if rounds is not None and isinstance(schedule, Ring):
        table["schedule"] = {**table.get("schedule", {}), "trips": rounds}
        table |= {"rounds": rounds} if "rounds" in table else {}
    elif rounds is not None and (fixed := schedule.fixed_rounds) is not None and rounds != fixed:
        raise JobError(
            f"the strategy {job.strategy!r} has {fixed} round{'s' * (fixed > 1)} and cannot have more: to continue "
            "training, submit "
            f'another job with model.start = "job:{job.name}"'
        )
    elif rounds is not None:
        table["rounds"] = rounds
    if target:
        table["target"] = target
    elif target is not None:
        table.pop("target", None)
    if devices is not None:
        table["fleet"] = {**table.get("fleet", {}), "devices": devices}
    made = dumps(table)
    read_job(made, "the job")
    return made
