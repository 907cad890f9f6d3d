"""This version reads what the kept version wrote and sent: encoded again, it decodes to the same values."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator import records as cloud_records
from coordinator.state import CoordinatorState
from edge_agent import records as agent_records
from fleet_sim.world.checkpoint import Checkpoint
from hierarchy.edge import records as edge_records
from sojourn.protocol.envelope import pack, unpack, unpack_presence
from sojourn.protocol.topics import Address
from tests.upgrade.command_fleet import CLOUD, NODES, ROLES
from tests.upgrade.kept import FIXTURES, VERSIONS
from tests.upgrade.kept import unpack as unpacked

if TYPE_CHECKING:
    from pathlib import Path

FORMS: dict[str, tuple[Any, Any]] = {
    "coordinator": (cloud_records.Record, CoordinatorState),
    "edge": (edge_records.Record, edge_records.EdgeState),
    "agent": (agent_records.Record, agent_records.AgentState),
}
"""The records and the state of each role."""


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    new = tmp_path_factory.mktemp("kept")
    return unpacked(request.param, new, "fleet.tar.gz", "journals.tar.gz", "simulation.tar.gz")


def rows(path: Path, what: str) -> list[bytes]:
    with closing(sqlite3.connect(path)) as db:
        return [row for (row,) in db.execute(what)]


def assert_read(data: bytes, form: Any, what: str = "") -> None:
    value = msgspec.msgpack.decode(data, type=form)
    encoded = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(encoded, type=form)) == encoded, what
    assert _holds(msgspec.msgpack.decode(encoded), msgspec.msgpack.decode(data)), what


def _holds(now: Any, then: Any) -> bool:
    """Whether everything that was written then is in what is written now, which may have more fields."""
    match then:
        case dict():
            return isinstance(now, dict) and all(key in now and _holds(now[key], value) for key, value in then.items())
        case list():
            return isinstance(now, list) and len(now) >= len(then) and all(map(_holds, now, then))
        case _:
            return bool(now == then or (now != now and then != then))  # NaN is NaN


def address(text: str) -> Address:
    role, name = text.split("/")
    return msgspec.convert({"role": role, "name": name}, Address)


def records_of(folder: Path, node: str) -> list[bytes]:
    """Those of the store as it was killed, and those of before its snapshot."""
    found = [folder / "stores" / node / "journal.db", folder / "journals" / f"{node}.db"]
    return [row for path in found for row in rows(path, "select record from journal")]


@pytest.mark.parametrize("node", NODES)
def test_every_record_is_read(folder: Path, node: str) -> None:
    form, _ = FORMS[ROLES[node]]
    records = records_of(folder, node)
    assert len(records) > 40
    for record in records:
        assert_read(record, form)


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_is_read(folder: Path, node: str) -> None:
    _, form = FORMS[ROLES[node]]
    (state,) = rows(folder / "stores" / node / "journal.db", "select state from snapshot")
    assert_read(state, form)


def test_the_snapshots_of_a_simulation_are_read(folder: Path) -> None:
    data = (folder / "half" / "checkpoint.bin").read_bytes()
    checkpoint = msgspec.msgpack.decode(data, type=Checkpoint)
    assert_read(data, Checkpoint)
    roles = {CLOUD: "coordinator"} | {name: "edge" for name in checkpoint.nodes if name.startswith("site-")}
    assert len(roles) == 3
    for name, node in checkpoint.nodes.items():
        _, form = FORMS[roles.get(name, "agent")]
        assert_read(node.snapshot, form)


def kept(version: str, name: str) -> Any:
    found = json.loads((FIXTURES / version / name).read_text())
    assert found, f"{version} has kept nothing in {name}"
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_of_record_is_read(version: str) -> None:
    for role, examples in kept(version, "records.json").items():
        record, state = FORMS[role]
        for kind, example in examples.items():
            assert_read(bytes.fromhex(example), state if kind == "state" else record, f"{role}, {kind}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_is_read(version: str) -> None:
    for packet in kept(version, "messages.json")["packets"]:
        data = bytes.fromhex(packet["hex"])
        if packet["to"] is None:
            message = unpack_presence(data)
        else:
            message = unpack(data, address(packet["from"]), address(packet["to"]))
        assert _holds(msgspec.msgpack.decode(pack(message)), msgspec.msgpack.decode(data)), packet["name"]
