"""Reads the mandates in an agent's store, also while the agent runs, and describes them for the device's owner."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.mandates import describe_trusted_keys
from edge_agent.records import AgentState, ClockSeen, HeldMandate, Record
from edge_agent.settings import AgentSettings
from sojourn.errors import ConfigError, StoreError
from sojourn.parts import name_of
from sojourn.protocol.limits import decoded
from sojourn.protocol.mandates import Mandate
from sojourn.protocol.wire import Task
from sojourn.settings import read_settings, store_folder
from sojourn.store.journal import FolderStore
from sojourn.store.journal_file import SNAPSHOTS

MAX_CLASSES_SHOWN = 10
"""Number of classes that are listed by name."""


@dataclass(frozen=True)
class AgentPlace:
    """The folder of an agent's store, and the keys of the operators it trusts if its settings are known."""

    folder: Path
    keys: Mapping[str, str] | None


class MandateLine(msgspec.Struct, frozen=True, kw_only=True):
    """One mandate as it is printed for the owner; without a readable mandate, its terms are empty."""

    job: str
    state: str
    serial: int
    by: str
    operator: str = ""
    purpose: str = ""
    model: str = ""
    kit: str = ""
    classes: str = ""
    tasks: tuple[str, ...] = ()
    leaves: str = ""
    sites: tuple[str, ...] = ()
    issued: str = ""
    until: str
    given: int
    visits: int = 0
    rounds: int = 0


def place_of(file: str | None, flags: dict[str, Any]) -> AgentPlace:
    """Find the store of an agent by its settings file, its name or its folder."""
    if file is not None:
        settings = read_settings(file, flags, AgentSettings)
        folder = store_folder(settings.store, settings.fleet, settings.name)
        return AgentPlace(folder, _keys(settings.mandate.keys_file))
    if flags["store"] is None and flags["name"] is None:
        raise ConfigError("name the agent's settings file, its --store, or its --name")
    return AgentPlace(store_folder(flags["store"], flags["fleet"] or "sojourn", flags["name"] or ""), None)


def _keys(file: str | None) -> Mapping[str, str]:
    if file is None:
        return {}
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # imported only if keys are configured

    return read_publics(file)


def describe_place(place: AgentPlace) -> str:
    """Describe which operators this device trusts, or which store was read."""
    return f"mandates: {describe_trusted_keys(place.keys)}" if place.keys is not None else f"mandates in {place.folder}"


def read_mandates(place: AgentPlace) -> list[MandateLine]:
    """Return all stored mandates, those in force first."""
    state = _state(place.folder)
    now = max(time.time(), state.mandates.seen)
    lines = [_line(job, held, now) for job, held in state.mandates.held.items()]
    return sorted(lines, key=lambda line: (line.state != "in force", line.job))


def correct_clock(folder: Path) -> str:
    """Set the latest time seen to the current time; mandates that have ended stay ended."""
    now = time.time()
    store = FolderStore(folder)  # raises StoreError if the agent is running
    try:
        store.append(msgspec.msgpack.encode(ClockSeen(now, corrected=True)), sync=True)
    finally:
        store.close()
    return f"clock reset to {_date(now)}. Mandates that have ended must be signed again."


def _state(folder: Path) -> AgentState:
    path = folder / "journal.db"
    if not path.exists():
        raise StoreError(f"{folder} is not an agent's store: name the agent's settings file, or its --store")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            newest = db.execute(SNAPSHOTS).fetchone()
            records = db.execute("select seq, record from journal order by seq").fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    state = decoded(newest[1], AgentState) if newest else AgentState()
    for seq, record in records:
        if newest is None or seq > newest[0]:
            state.apply(decoded(record, Record))
    return state


def _line(job: str, held: HeldMandate, now: float) -> MandateLine:
    over = f"ended {_date(held.ended_at)}: {held.ended}" if held.ended else ""
    if not over and held.until <= now:
        over = "expired"
    state, until = over or "in force", _date(held.until)
    line = MandateLine(job=job, state=state, serial=held.serial, by=held.by, until=until, given=held.visits)
    mandate = held.signed.read() if held.signed else None
    if mandate is None:
        return line
    return msgspec.structs.replace(
        line,
        operator=mandate.operator,
        purpose=mandate.purpose,
        model=mandate.model,
        kit=mandate.kit.hex(),
        classes=_classes(mandate),
        tasks=tuple(map(describe_task, mandate.tasks)),
        leaves=_leaves(mandate),
        sites=mandate.sites,
        issued=_date(mandate.issued),
        visits=mandate.visits,
        rounds=mandate.rounds,
    )


def describe_task(task: Task) -> str:
    """Describe a task for people."""
    training = task.training
    how = f"{training.epochs} epochs in batches of {training.batch}, {training.optimiser}, rate {training.lr:g}"
    if task.kind == "estimate":
        estimator = name_of(task.estimator) if task.estimator else "?"
        return f"estimate ({estimator}): at most {how}"
    return f"{task.kind}: {how}, objective {name_of(task.objective)}"


def _classes(mandate: Mandate) -> str:
    more = f" and {mandate.class_count - MAX_CLASSES_SHOWN} more" if mandate.class_count > MAX_CLASSES_SHOWN else ""
    return ", ".join(mandate.classes[:MAX_CLASSES_SHOWN]) + more


def _leaves(mandate: Mandate) -> str:
    vectors = [f"{name} (at most {size:,} bytes)" for name, size in mandate.returns.items()]
    numbers = [f"{mandate.signature_size} numbers that describe the data"] if mandate.signature_size else []
    return ", ".join([*vectors, *numbers, "the number of samples, losses"])


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(moment, 2e11)))
