"""The mandates in an agent's store, read beside the agent that runs, in words for the owner of the device."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.mandate_records import ClockSeen
from edge_agent.mandates import whose_word
from edge_agent.records import AgentState, Record
from edge_agent.settings import AgentSettings
from sojourn.errors import ConfigError, StoreError
from sojourn.parts import name_of
from sojourn.protocol.mending import read_record
from sojourn.settings import read_settings, store_folder
from sojourn.store.journal import FolderStore
from sojourn.store.tables import SNAPSHOTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edge_agent.mandate_records import HeldMandate
    from sojourn.protocol.mandate import Mandate
    from sojourn.protocol.wire import Task

SHOWN = 10
"""So many classes are named."""


@dataclass(frozen=True)
class AgentPlace:
    """Where an agent keeps what it must not forget, and the operators it trusts, if its settings are known."""

    folder: Path
    keys: Mapping[str, str] | None


class MandateLine(msgspec.Struct, frozen=True, kw_only=True):
    """One mandate as an owner reads it."""

    job: str
    state: str
    serial: int
    by: str
    operator: str
    purpose: str
    model: str
    kit: str
    classes: str
    tasks: tuple[str, ...]
    leaves: str
    sites: tuple[str, ...]
    issued: str
    until: str
    given: int
    visits: int
    rounds: int


def place_of(file: str | None, flags: dict[str, Any]) -> AgentPlace:
    """The store of an agent, by its settings file, or by its name or folder alone."""
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
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # cryptography only where keys are

    return read_publics(file)


def words_of(place: AgentPlace) -> str:
    """Whose word counts on this device."""
    return f"mandates: {whose_word(place.keys)}" if place.keys is not None else f"mandates in {place.folder}"


def read_mandates(place: AgentPlace) -> list[MandateLine]:
    """All mandates that are kept, those in force first."""
    state = _state(place.folder)
    now = max(time.time(), state.mandates.seen)
    lines = [_line(job, held, now) for job, held in state.mandates.held.items()]
    return sorted(lines, key=lambda line: (line.state != "in force", line.job))


def correct_clock(folder: Path) -> str:
    """Take the time of now for the latest that was seen; mandates that have ended stay ended."""
    now = time.time()
    store = FolderStore(folder)  # which says so if the agent runs
    try:
        store.append(msgspec.msgpack.encode(ClockSeen(now, corrected=True)), sync=True)
    finally:
        store.close()
    return f"from now on the clock counts as it is: {_date(now)}. Mandates that have ended need to be signed again."


def _state(folder: Path) -> AgentState:
    path = folder / "journal.db"
    if not path.exists():
        raise StoreError(f"{folder} holds no agent's store: name its settings file, or its --store")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            newest = db.execute(SNAPSHOTS).fetchone()
            records = db.execute("select seq, record from journal order by seq").fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    state = read_record(newest[1], AgentState) if newest else AgentState()
    for seq, record in records:
        if newest is None or seq > newest[0]:
            state.apply(read_record(record, Record))
    return state


def _line(job: str, held: HeldMandate, now: float) -> MandateLine:
    mandate = held.signed.read() if held.signed else None
    over = f"ended {_date(held.ended_at)}: {held.ended}" if held.ended else ""
    if not over and held.until <= now:
        over = "its time is over"
    return MandateLine(
        job=job,
        state=over or "in force",
        serial=held.serial,
        by=held.by,
        operator=mandate.operator if mandate else "",
        purpose=mandate.purpose if mandate else "",
        model=mandate.model if mandate else "",
        kit=mandate.kit.hex() if mandate else "",
        classes=_classes(mandate) if mandate else "",
        tasks=tuple(map(task_words, mandate.tasks)) if mandate else (),
        leaves=_leaves(mandate) if mandate else "",
        sites=mandate.sites if mandate else (),
        issued=_date(mandate.issued) if mandate else "",
        until=_date(held.until),
        given=held.visits,
        visits=mandate.visits if mandate else 0,
        rounds=mandate.rounds if mandate else 0,
    )


def task_words(task: Task) -> str:
    """What a task asks, in words."""
    training = task.training
    how = f"{training.epochs} epochs in batches of {training.batch}, {training.optimiser}, rate {training.lr:g}"
    if task.kind == "estimate":
        asked = name_of(task.estimator) if task.estimator else "?"
        return f"estimate ({asked}): at most {how}"
    return f"{task.kind}: {how}, objective {name_of(task.objective)}"


def _classes(mandate: Mandate) -> str:
    more = f" and {mandate.class_count - SHOWN} more" if mandate.class_count > SHOWN else ""
    return ", ".join(mandate.classes[:SHOWN]) + more


def _leaves(mandate: Mandate) -> str:
    vectors = [f"{name} (at most {size:,} bytes)" for name, size in mandate.returns.items()]
    numbers = [f"{mandate.figures} numbers that describe the data"] if mandate.figures else []
    return ", ".join([*vectors, *numbers, "how many samples there are, losses"])


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(moment, 2e11)))
