"""The baseline: source, stores and messages of one earlier version in one archive, and whether today's code reads them.

`make baseline` makes the archive (`make.py` lists its content). Until 1.0 it replaces the archive whenever the wire or
a journal changes; from 1.0 on the archive is of the release before, which every release has to read.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from coordinator import records as cloud_records
from coordinator.state import CoordinatorState
from edge_agent import records as agent_records
from hierarchy.edge import records as edge_records
from sojourn.errors import InvalidMessage
from sojourn.protocol.envelope import pack, unpack, unpack_presence
from sojourn.protocol.topics import Address
from tests.baseline.fleet import NODES, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ARCHIVE = Path(__file__).parent / "baseline.tar.xz"
ADVICE = "Today's code does not read the baseline. If the wire or a journal changed on purpose, run: make baseline"
CLOSE = 1e-3
"""The largest difference in a trained model between two kinds of CPU; one round more or less causes far more."""
FORMS: dict[str, tuple[Any, Any]] = {
    "coordinator": (cloud_records.Record, CoordinatorState),
    "edge": (edge_records.Record, edge_records.EdgeState),
    "agent": (agent_records.Record, agent_records.AgentState),
}
"""The records and the state of each role."""


def unpack_baseline(folder: Path) -> Path:
    """Unpack the archive into a new folder."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder


def weights(model: Path) -> np.ndarray:
    """All parameters of an exported model as one vector."""
    return np.concatenate([numpy_helper.to_array(it).ravel() for it in onnx.load(model).graph.initializer], dtype="f8")


def distance(model: Path, other: Path) -> float:
    """The largest difference of any parameter: 0 for the same bits."""
    return float(np.max(np.abs(weights(model) - weights(other))))


def unread_stores(folder: Path) -> list[str]:
    """Return the records and snapshots of the four stores that cannot be read, with the reason."""
    found = []
    for node in NODES:
        journal = folder / "fleet" / "stores" / node / "journal.db"
        record, state = FORMS[ROLES[node]]
        records = _rows(journal, "select record from journal")
        assert len(records) > 20, f"the store of {node} has only {len(records)} records"
        found += _problems((f"record {n} of {node}", data, record) for n, data in enumerate(records))
        found += _problems(
            (f"snapshot of {node}", data, state) for data in _rows(journal, "select state from snapshot")
        )
    return found


def unread_kinds(folder: Path) -> list[str]:
    """Return the kinds of records that cannot be read, with the reason: an example of each, with every field filled."""
    examples = [
        (f"{kind} of the {role}", bytes.fromhex(example), FORMS[role][kind == "state"])
        for role, kinds in json.loads((folder / "records.json").read_text()).items()
        for kind, example in kinds.items()
    ]
    assert examples
    return _problems(examples)


def unread_messages(folder: Path) -> list[str]:
    """Return the messages that cannot be read, with the reason: one packet or more of each kind."""
    packets = json.loads((folder / "messages.json").read_text())["packets"]
    assert packets
    found = []
    for packet in packets:
        data = bytes.fromhex(packet["hex"])
        try:
            read = unpack_presence(data) if packet["to"] is None else unpack(data, *map(_address, _route(packet)))
        except InvalidMessage as error:
            found.append(f"{packet['name']}: {error}")
        else:
            found += _lost(packet["name"], data, pack(read))
    return found


def _problems(examples: Iterable[tuple[str, bytes, Any]]) -> list[str]:
    found = []
    for name, data, form in examples:
        try:
            encoded = msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=form))
        except msgspec.DecodeError as error:
            found.append(f"{name}: {error}")
        else:
            found += _lost(name, data, encoded)
    return found


def _lost(name: str, before: bytes, now: bytes) -> Iterator[str]:
    if not _holds(msgspec.msgpack.decode(now), msgspec.msgpack.decode(before)):
        yield f"{name}: a value was lost or changed"


def _holds(now: Any, before: Any) -> bool:
    """Return whether all old values are in the new ones, which may have more fields."""
    match before:
        case dict():
            return isinstance(now, dict) and all(key in now and _holds(now[key], before[key]) for key in before)
        case list():
            return isinstance(now, list) and len(now) >= len(before) and all(map(_holds, now, before))
        case _:
            return bool(now == before or (now != now and before != before))  # NaN equals NaN here


def _rows(path: Path, query: str) -> list[bytes]:
    with closing(sqlite3.connect(path)) as db:
        return [row for (row,) in db.execute(query)]


def _route(packet: dict[str, str]) -> tuple[str, str]:
    return packet["from"], packet["to"]


def _address(text: str) -> Address:
    role, name = text.split("/")
    return msgspec.convert({"role": role, "name": name}, Address)
