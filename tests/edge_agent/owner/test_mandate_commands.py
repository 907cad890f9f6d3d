"""`sojourn agent mandates`: prints the mandates while the agent runs, and resets the clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from edge_agent.commands import app
from edge_agent.mandate_view import describe_task
from edge_agent.records import AgentState, ClockSeen, MandateEnded, MandateTaken
from sojourn.errors import ConfigError, StoreError
from sojourn.parts import SizeEstimator, Training
from sojourn.protocol.wire import Task
from sojourn.store.journal import FolderStore
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.protocol.mandates import key_of, signed

if TYPE_CHECKING:
    from pathlib import Path

FAR = 4e9


@pytest.fixture
def store(tmp_path: Path):
    """The store of a running agent."""
    made = FolderStore(tmp_path / "store")
    held = signed(ends=FAR, sites=("hall",), purpose="to know cats from dogs", signature_size=7)
    for record in (
        MandateTaken("job", 5, "ann", held, FAR, 1e9),
        MandateTaken("old", 6, "ben", signed(job="old"), 2e9, 1e9),
        MandateEnded("old", 6, "withdrawn by ben", 2e9, 1.7e9, True),
    ):
        made.append(msgspec.msgpack.encode(record), sync=True)
    yield made
    made.close()


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["mandates", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_owner_lists_keys_and_mandates_while_the_agent_runs(tmp_path: Path, store) -> None:
    (tmp_path / "operators.pub").write_text(f"{key_of('ann').public} ann\n")
    file = tmp_path / "agent.toml"
    tables = '[data]\npath = "x.npz"\n[mandate]\nkeys_file = "operators.pub"\n'
    file.write_text(f'name = "pi-1"\nstore = "{tmp_path / "store"}"\n{tables}')
    output = run(file)
    assert output.startswith("mandates: required, signed by one of: ann\n\njob: in force (mandate 5)\n")
    for line in (
        "  what    train: 1 epochs in batches of 32, sgd, rate 0.05, objective sgd",
        "  model   mlp, kit 000102030405; classes: a, b",
        "  leaves  model (at most 1,000 bytes), 7 numbers that describe the data, the number of samples, losses",
        "  where   hall",
        "  for     to know cats from dogs",
        "  by      ann",
        "  until   2096-10-02 07:06 UTC",
        "  given   0 results of at most 4, in 3 rounds",
        "old: ended 2023-11-14 22:13 UTC: withdrawn by ben (mandate 6)",
    ):
        assert line in output
    newest, old = json.loads(run("--store", tmp_path / "store", "--json"))
    assert (newest["job"], newest["state"], newest["kit"][:6]) == ("job", "in force", "000102")
    assert old["state"].startswith("ended")


def test_snapshot_without_mandates_is_reported_as_empty(tmp_path: Path, store) -> None:
    store.snapshot(msgspec.msgpack.encode(AgentState()))
    assert run("--store", tmp_path / "store").endswith("no mandates yet\n")


def test_clock_is_reset_only_while_the_agent_is_stopped(tmp_path: Path, store) -> None:
    store.append(msgspec.msgpack.encode(ClockSeen(3.9e9)), sync=True)
    with pytest.raises(StoreError, match="in use by another process"):
        run("--store", tmp_path / "store", "--reset-clock")
    store.close()
    assert "must be signed again" in run("--store", tmp_path / "store", "--reset-clock")
    again = FolderStore(tmp_path / "store")
    last = msgspec.msgpack.decode(again.load()[1][-1], type=ClockSeen)
    assert last.corrected
    assert last.at < 3e9
    again.close()


def test_folder_without_agent_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not an agent's store"):
        run("--store", tmp_path)
    with pytest.raises(ConfigError, match="name the agent's settings file"):
        run()


def test_task_is_described_in_words() -> None:
    asked = Task("estimate", Training(epochs=3, optimiser="adam"), TASK.objective, "float32", 1, SizeEstimator())
    assert describe_task(asked) == "estimate (sizes): at most 3 epochs in batches of 32, adam, rate 0.05"
