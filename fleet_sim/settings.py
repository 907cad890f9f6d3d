"""What is simulated: a job as a coordinator gets it, and the fleet that it is tried on. Typed and closed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from coordinator.jobs.settings import DIGITS, FILE_KEYS, JobData, JobSettings, read_job
from coordinator.strategies import STRATEGIES
from coordinator.strategies.strategy import FORMS
from coordinator.tracking.settings import TrackingSettings
from fleet_sim.datasets.loading import made_set
from fleet_sim.datasets.partition import Split
from fleet_sim.profiles.boards import PROFILES
from fleet_sim.world.availability import Availability
from sojourn.errors import ConfigError
from sojourn.node.quotas import MEMBERS
from sojourn.parts import Natural, name_of
from sojourn.settings import parse, validated, with_tables
from sojourn.toml import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

USUAL_SITES = 2
_PLACE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?|mps")
OneOrMore = str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class SimulationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[simulation]` of a job file: the fleet that is simulated, and who trains for it.

    data: the name of a set, an NPZ or CSV file, or a folder of images, read as `[data]` of the job says. sites: how
    many edge servers; 0 for two, or as many as the devices need: one takes 10,000. reach: a device reaches `one` site,
    or `all`. engine, trainer, device, workers, ray: how visits are trained (fleet_sim/engines), and the address of a
    cluster for it. board, link: what the devices and their links are like; of several, each site's devices take one
    after another in turn; no link: the board's own. transfers: the way of models and messages is `reckoned`, by what
    it would cost, or `played`, packet by packet: slower, with the same models.
    """

    data: str = "digits"
    devices: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20
    sites: Natural = 0
    reach: Literal["one", "all"] = "one"
    engine: Literal["auto", "serial", "pool", "batched", "ray"] = "auto"
    trainer: Literal["onnx", "torch"] = "onnx"
    device: str = "auto"
    workers: Natural = 0
    ray: str = ""
    board: OneOrMore = "raspberry-pi-4"
    link: OneOrMore = ""
    transfers: Literal["reckoned", "played"] = "reckoned"

    def __post_init__(self) -> None:
        """ValueError, which msgspec passes on, where `device` is nothing that torch may have."""
        if not _PLACE.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}: it may be auto, cpu, cuda, one of several (cuda:1) or mps")

    @property
    def names(self) -> list[str]:
        """The devices' names."""
        width = len(str(self.devices))
        return [f"device-{number:0{width}}" for number in range(1, self.devices + 1)]

    @property
    def reached(self) -> dict[str, tuple[str, ...]]:
        """Which devices use which site's broker: dealt out in turn."""
        sites, names = min(self.site_count, self.devices), self.names
        return {f"site-{number + 1}": tuple(names[number::sites]) for number in range(sites)}

    @property
    def site_count(self) -> int:
        """How many sites there are, if there are as many devices."""
        return self.sites or max(USUAL_SITES, self._needed)

    @property
    def _needed(self) -> int:
        """As many sites as it takes, so that none has more devices than an edge server keeps in mind."""
        return -(-self.devices // MEMBERS)

    @property
    def crowded(self) -> str | None:
        """Why so many devices cannot be at so few sites; None if they can."""
        if self.reach == "all" and self.devices > MEMBERS:
            return f"every site reaches all {self.devices:,} devices, and takes {MEMBERS:,} at most: leave out reach"
        if 0 < self.sites < self._needed:
            most = f"each takes {MEMBERS:,} devices at most"
            return f"sites = {self.sites}, and {most}: {self.devices:,} devices need {self._needed} sites"
        return None

    def dealt(self, kinds: OneOrMore) -> dict[str, str]:
        """Which device is of which kind: dealt out in turn at every site, so that each has its share of all."""
        named = (kinds,) if isinstance(kinds, str) else kinds
        return {name: named[at % len(named)] for devices in self.reached.values() for at, name in enumerate(devices)}


class Simulation(msgspec.Struct, frozen=True):
    """A whole simulation, checked; `job` is the job file as TOML tables, without its data."""

    job: dict[str, Any]
    fleet: SimulationSettings
    split: Split
    availability: Availability = Availability()
    tracking: TrackingSettings = TrackingSettings()
    notes: tuple[str, ...] = ()
    """What of the file does not count, and why: a line each."""

    @property
    def text(self) -> str:
        """A file that gives this simulation again: every setting there is, also those that nobody gave."""
        job = self.read()
        everything = {**_given(msgspec.to_builtins(job)), **msgspec.to_builtins(job.parts())}
        del everything["data"]["test"]
        if "devices" not in self.job.get("fleet", {}):
            del everything["fleet"]["devices"]  # as many as are simulated
        tables = {
            "simulation": self.fleet,
            "split": self.split,
            "availability": self.availability,
            "tracking": self.tracking,
        }
        everything |= {name: _given(msgspec.to_builtins(table)) for name, table in tables.items()}
        return dumps({key: value for key, value in everything.items() if value != {}})

    def job_text(self, test: Path | str) -> str:
        """The job file for a coordinator, with the set that models are tested on: on the scale that is asked for."""
        data = {**self.job.get("data", {}), "test": str(test)}
        data.pop("scale", None)
        fleet = {"devices": self.fleet.devices, **self.job.get("fleet", {})}
        return dumps({**self.job, "data": data, "fleet": fleet})

    def read(self) -> JobSettings:
        """The settings of the job that is simulated."""
        job = read_job(self.job_text("digits"), "the simulation")
        data = validated({**_given(msgspec.to_builtins(job.data)), **self.job.get("data", {})}, JobData, "[data]")
        return msgspec.structs.replace(job, data=data)


def read_simulation(
    text: str, where: str, changes: dict[str, Any] | None = None, *, planned: bool = False
) -> Simulation:
    """The simulation in a TOML text, with what the command line changes.

    planned: nothing will be trained or tested, so the file may be one for a coordinator, with a test set.
    """
    tables = with_tables(parse(text, where), JobSettings, where)
    notes = _without_foreign(tables, (changes or {}).get("strategy"))
    tables = _changed(tables, changes or {}, where)
    simulated = tables.pop("simulation", {})
    if planned:
        notes += _test_set_as_data(tables, simulated, where)
    if isinstance(simulated, dict) and "profile" in simulated and "board" not in simulated:
        simulated["board"] = simulated.pop("profile")  # as files and result folders from before 0.5.0 have it
    fleet = validated(simulated, SimulationSettings, f"{where} [simulation]")
    if fleet.crowded:
        raise ConfigError(f"{where} [simulation]: {fleet.crowded}")
    fleet = msgspec.structs.replace(fleet, sites=fleet.site_count)
    split = validated(tables.pop("split", {}), Split, f"{where} [split]")
    there = validated(tables.pop("availability", {}), Availability, f"{where} [availability]")
    tracking = validated(tables.pop("tracking", {}), TrackingSettings, f"{where} [tracking]").resolved(where)
    data = tables.get("data", {})
    if not isinstance(data, dict):
        raise ConfigError(
            f"{where}: data is {data!r} and no table: a simulation's data is [simulation] data = {data!r}"
        )
    if data.get("test"):
        raise ConfigError(f"{where}: a simulation takes its test set from simulation.data: leave data.test out")
    tables.setdefault("name", "simulation")
    tables.setdefault("gate", "report")  # a simulated fleet has no attackers
    _as_the_set_needs(tables, fleet.data)
    simulation = Simulation(tables, fleet, split, there, tracking, tuple(notes))
    job = read_job(simulation.job_text("digits"), where)
    if job.model.start != job.model.start_file:
        raise ConfigError(
            f"{where}: a simulation knows no earlier job to start from: leave model.start out, or name a file"
        )
    if job.fleet.devices > fleet.devices:
        raise ConfigError(f"{where}: fleet.devices = {job.fleet.devices}, and {fleet.devices} are simulated")
    return simulation


def _changed(tables: dict[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tables with values set by their paths."""
    for path, value in changes.items():
        place, *keys = tables, *path.split(".")
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{where}: {path} cannot be set, since {key} is {place!r} and no table: write [{key}]"
                )
        place[keys[-1]] = value
        tables = with_tables(tables, JobSettings, where)
    return tables


def _without_foreign(tables: dict[str, Any], strategy: object) -> list[str]:
    """Leave out settings for parts that another strategy, named on the command line, does not have; a line for each."""
    if strategy == tables.get("strategy", JobSettings.strategy) or strategy not in STRATEGIES:
        return []
    notes = []
    for part in FORMS:
        given = tables.get(part)
        if not isinstance(given, dict) or "name" in given:
            continue
        own = getattr(STRATEGIES[str(strategy)].strategy, part)
        foreign = [key for key in given if key not in own.__struct_fields__]
        tables[part] = {key: value for key, value in given.items() if key not in foreign}
        notes += [f"{part}.{key} is left out: {strategy}'s {part}, {name_of(own)}, has no {key}" for key in foreign]
    return notes


def _test_set_as_data(tables: dict[str, Any], simulated: Any, where: str) -> list[str]:
    """Have the samples of devices drawn from the job's test set, unless the file names another set for them."""
    data = tables.get("data", {})
    if not isinstance(data, dict) or not isinstance(simulated, dict) or not data.get("test"):
        return []
    test = str(data["test"])
    tables["data"] = {key: value for key, value in data.items() if key not in FILE_KEYS["data"]}
    if "data" in simulated:
        return [f"data.test ({test}) is left out: a plan tests nothing, and devices have {simulated['data']}"]
    simulated["data"] = test if test == DIGITS else str(Path(where).parent / test)
    return [f"The devices' samples are drawn from the job's test set, {test}: --data names another set."]


def _as_the_set_needs(tables: dict[str, Any], name: str) -> None:
    """Add what a set by name is for, where the job says nothing else: the kind of task, how its data is, a model."""
    made = made_set(name)
    task = tables.get("task", {})
    kind = task.get("kind") if isinstance(task, dict) else task
    if made is None or kind not in (None, made.kind):
        return
    for table, usual in made.tables.items():
        given = tables.get(table, {})
        if table == "task" and isinstance(given, str):
            tables[table] = usual
        elif isinstance(given, dict) and usual and not (table == "model" and "name" in given):
            tables[table] = {**usual, **given}


def read_simulation_file(file: Path, changes: dict[str, Any] | None = None, *, planned: bool = False) -> Simulation:
    """The simulation in a job file, with what the command line changes; `planned` as in `read_simulation`."""
    if not file.is_file():
        hint = f": a board is named by --board {file}" if str(file) in PROFILES else ""
        raise ConfigError(f"there is no file {file}{hint}" if not file.exists() else f"{file} is no file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error})") from error
    return read_simulation(text, str(file), changes, planned=planned)


def _given(table: dict[str, Any]) -> dict[str, Any]:
    """A table without what is not there: TOML has no word for nothing."""
    return {
        key: _given(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
    }
