"""Settings of a simulation: a job as for a coordinator, and the simulated fleet. Typed; unknown keys are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from coordinator.jobs.settings import DIGITS, FILE_KEYS, JobData, JobSettings, read_job
from coordinator.strategies import STRATEGIES
from coordinator.strategies.strategy import FORMS
from coordinator.tracking.run_stores import TrackingSettings
from fleet_sim.board_profiles import PROFILES
from fleet_sim.datasets.loading import made_set
from fleet_sim.datasets.partition import Split
from fleet_sim.world.availability import Availability
from sojourn.errors import ConfigError
from sojourn.node.peers import MAX_DEVICES_PER_SITE
from sojourn.parts import Natural, name_of
from sojourn.settings import dumps, parse, validated, with_tables

DEFAULT_SITES = 2
_PLACE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?|mps")
OneOrMore = str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class SimulationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[simulation]` of a job file: the simulated fleet and its training engine.

    data: the name of a set, an NPZ or CSV file, or a folder of images, read according to `[data]` of the job. sites:
    the number of edge servers; 0 for two, or as many as the devices need: one takes 10,000. reach: a device reaches
    `one` site, or `all`. engine, trainer, device, workers, ray: how visits are trained (fleet_sim/engines), and the
    address of a Ray cluster. board, link: the devices' boards and links; several are assigned to each site's devices in
    turn; without link: the board's own. transfers: `computed` computes the time and bytes of transfers, `simulated`
    simulates each packet: slower, with the same models.
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
    transfers: Literal["computed", "simulated"] = "computed"

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec passes on, if `device` is not a torch device."""
        if not _PLACE.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}: use auto, cpu, cuda, one of several (cuda:1) or mps")

    @property
    def names(self) -> list[str]:
        """The devices' names."""
        width = len(str(self.devices))
        return [f"device-{number:0{width}}" for number in range(1, self.devices + 1)]

    @property
    def devices_by_site(self) -> dict[str, tuple[str, ...]]:
        """Return the devices of each site's broker, assigned in turn."""
        sites, names = min(self.site_count, self.devices), self.names
        return {f"site-{number + 1}": tuple(names[number::sites]) for number in range(sites)}

    @property
    def site_count(self) -> int:
        """The number of sites, if there are enough devices."""
        return self.sites or max(DEFAULT_SITES, self._min_sites)

    @property
    def _min_sites(self) -> int:
        """The minimum number of sites, so that none exceeds an edge server's device limit."""
        return -(-self.devices // MAX_DEVICES_PER_SITE)

    @property
    def site_limit_error(self) -> str | None:
        """Return why these sites cannot take so large a number of devices; None if they can."""
        if self.reach == "all" and self.devices > MAX_DEVICES_PER_SITE:
            limit = f"takes at most {MAX_DEVICES_PER_SITE:,}"
            return f"every site reaches all {self.devices:,} devices, but {limit}: omit reach"
        if 0 < self.sites < self._min_sites:
            limit = f"each takes at most {MAX_DEVICES_PER_SITE:,} devices"
            return f"sites = {self.sites}, but {limit}: {self.devices:,} devices need {self._min_sites} sites"
        return None

    def dealt(self, kinds: OneOrMore) -> dict[str, str]:
        """Return the kind of each device, assigned in turn at every site, so that each site has its share of all."""
        named = (kinds,) if isinstance(kinds, str) else kinds
        places = ((at, name) for devices in self.devices_by_site.values() for at, name in enumerate(devices))
        return {name: named[at % len(named)] for at, name in places}


class Simulation(msgspec.Struct, frozen=True):
    """A complete, checked simulation; `job` is the job file as TOML tables, without its data."""

    job: dict[str, Any]
    fleet: SimulationSettings
    split: Split
    availability: Availability = Availability()
    tracking: TrackingSettings = TrackingSettings()
    notes: tuple[str, ...] = ()
    """Ignored settings of the file with reasons, one per line."""

    @property
    def text(self) -> str:
        """Return a file that reproduces this simulation, with every setting, including defaults."""
        job = self.read()
        everything = {**without_none(msgspec.to_builtins(job)), **msgspec.to_builtins(job.parts())}
        del everything["data"]["test"]
        if "devices" not in self.job.get("fleet", {}):
            del everything["fleet"]["devices"]  # the number of simulated devices
        tables = {
            "simulation": self.fleet,
            "split": self.split,
            "availability": self.availability,
            "tracking": self.tracking,
        }
        everything |= {name: without_none(msgspec.to_builtins(table)) for name, table in tables.items()}
        return dumps({key: value for key, value in everything.items() if value != {}})

    def job_text(self, test: Path | str) -> str:
        """Return the job file for a coordinator, with the test set on the requested scale."""
        data = {**self.job.get("data", {}), "test": str(test)}
        data.pop("scale", None)
        fleet = {"devices": self.fleet.devices, **self.job.get("fleet", {})}
        return dumps({**self.job, "data": data, "fleet": fleet})

    def read(self) -> JobSettings:
        """Parse the settings of the simulated job."""
        job = read_job(self.job_text("digits"), "the simulation")
        data = validated({**without_none(msgspec.to_builtins(job.data)), **self.job.get("data", {})}, JobData, "[data]")
        return msgspec.structs.replace(job, data=data)


def read_simulation(
    text: str, where: str, changes: dict[str, Any] | None = None, *, planned: bool = False
) -> Simulation:
    """Return the simulation of a TOML text, with changes of the command line.

    planned: nothing will be trained or tested, so the file may be one for a coordinator, with a test set.
    """
    tables = with_tables(parse(text, where), JobSettings, where)
    notes = _drop_unknown_settings(tables, (changes or {}).get("strategy"))
    tables = _changed(tables, changes or {}, where)
    simulated = tables.pop("simulation", {})
    if planned:
        notes += _test_set_as_data(tables, simulated, where)
    fleet = validated(simulated, SimulationSettings, f"{where} [simulation]")
    if fleet.site_limit_error:
        raise ConfigError(f"{where} [simulation]: {fleet.site_limit_error}")
    fleet = msgspec.structs.replace(fleet, sites=fleet.site_count)
    split = validated(tables.pop("split", {}), Split, f"{where} [split]")
    there = validated(tables.pop("availability", {}), Availability, f"{where} [availability]")
    tracking = validated(tables.pop("tracking", {}), TrackingSettings, f"{where} [tracking]").resolved(where)
    data = tables.get("data", {})
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: data is {data!r}, not a table: write [simulation] data = {data!r}")
    if data.get("test"):
        raise ConfigError(f"{where}: a simulation takes its test set from simulation.data: omit data.test")
    tables.setdefault("name", "simulation")
    tables.setdefault("gate", "report")  # a simulated fleet has no attackers
    _with_set_defaults(tables, fleet.data)
    simulation = Simulation(tables, fleet, split, there, tracking, tuple(notes))
    job = read_job(simulation.job_text("digits"), where)
    if job.model.start != job.model.start_file:
        raise ConfigError(f"{where}: a simulation has no earlier job to start from: omit model.start, or use a file")
    if job.fleet.devices > fleet.devices:
        raise ConfigError(f"{where}: fleet.devices = {job.fleet.devices}, but {fleet.devices} are simulated")
    return simulation


def _changed(tables: dict[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the tables with values set by their paths."""
    for path, value in changes.items():
        place, *keys = tables, *path.split(".")
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{where}: {path} cannot be set, because {key} is {place!r}, not a table: write [{key}]"
                )
        place[keys[-1]] = value
        tables = with_tables(tables, JobSettings, where)
    return tables


def _drop_unknown_settings(tables: dict[str, Any], strategy: object) -> list[str]:
    """Remove settings of parts that a strategy from the command line does not have; return a line for each."""
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
        notes += [f"{part}.{key} is ignored: {strategy}'s {part}, {name_of(own)}, has no {key}" for key in foreign]
    return notes


def _test_set_as_data(tables: dict[str, Any], simulated: Any, where: str) -> list[str]:
    """Draw the devices' samples from the job's test set, unless the file names another set for them."""
    data = tables.get("data", {})
    if not isinstance(data, dict) or not isinstance(simulated, dict) or not data.get("test"):
        return []
    test = str(data["test"])
    tables["data"] = {key: value for key, value in data.items() if key not in FILE_KEYS["data"]}
    if "data" in simulated:
        return [f"data.test ({test}) is ignored: a plan tests nothing, and devices have {simulated['data']}"]
    simulated["data"] = test if test == DIGITS else str(Path(where).parent / test)
    return [f"The devices' samples are drawn from the job's test set, {test}. Use --data for another set."]


def _with_set_defaults(tables: dict[str, Any], name: str) -> None:
    """Add a named set's defaults, unless the job overrides them: the kind of task, the data settings, a model."""
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
    """Return the simulation of a job file, with changes of the command line; `planned` as in `read_simulation`."""
    if not file.is_file():
        hint = f": use --board {file} for a board" if str(file) in PROFILES else ""
        raise ConfigError(f"there is no file {file}{hint}" if not file.exists() else f"{file} is not a file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error})") from error
    return read_simulation(text, str(file), changes, planned=planned)


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without None values: TOML has no null."""
    return {
        key: without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
