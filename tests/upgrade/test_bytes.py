"""What earlier versions wrote and sent means the same to this one: decoded and encoded, it is the same bytes."""

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


def again(data: bytes, form: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=form))


def address(text: str) -> Address:
    role, name = text.split("/")
    return msgspec.convert({"role": role, "name": name}, Address)


def records_of(folder: Path, node: str) -> list[bytes]:
    """Those of the store as it was killed, and those of before its snapshot."""
    found = [folder / "stores" / node / "journal.db", folder / "journals" / f"{node}.db"]
    return [row for path in found for row in rows(path, "select record from journal")]


@pytest.mark.parametrize("node", NODES)
def test_every_record_is_read_and_written_as_it_was(folder: Path, node: str) -> None:
    form, _ = FORMS[ROLES[node]]
    records = records_of(folder, node)
    assert len(records) > 40
    for record in records:
        assert again(record, form) == record


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_is_read_and_written_as_it_was(folder: Path, node: str) -> None:
    _, form = FORMS[ROLES[node]]
    (state,) = rows(folder / "stores" / node / "journal.db", "select state from snapshot")
    assert again(state, form) == state


def test_the_snapshots_of_a_simulation_are_read_and_written_as_they_were(folder: Path) -> None:
    data = (folder / "half" / "checkpoint.bin").read_bytes()
    checkpoint = msgspec.msgpack.decode(data, type=Checkpoint)
    assert msgspec.msgpack.encode(checkpoint) == data
    roles = {CLOUD: "coordinator"} | {name: "edge" for name in checkpoint.nodes if name.startswith("site-")}
    assert len(roles) == 3
    for name, node in checkpoint.nodes.items():
        _, form = FORMS[roles.get(name, "agent")]
        assert again(node.snapshot, form) == node.snapshot


def kept(version: str, name: str) -> Any:
    found = json.loads((FIXTURES / version / name).read_text())
    assert found, f"{version} has kept nothing in {name}"
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_of_record_is_read_and_written_as_it_was(version: str) -> None:
    for role, examples in kept(version, "records.json").items():
        record, state = FORMS[role]
        for kind, example in examples.items():
            now = again(bytes.fromhex(example), state if kind == "state" else record)
            assert now.hex() == example, f"{role}, {kind}"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_is_read_and_written_as_it_was(version: str) -> None:
    for packet in kept(version, "messages.json")["packets"]:
        data = bytes.fromhex(packet["hex"])
        if packet["to"] is None:
            message = unpack_presence(data)
        else:
            message = unpack(data, address(packet["from"]), address(packet["to"]))
        assert pack(message) == data, packet["name"]
