"""Today's code opens the baseline's stores, resumes its job, rolls out its releases, and works with its processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edge_agent import Model
from tests.baseline.archive import (
    ADVICE,
    CLOSE,
    distance,
    unpack_baseline,
    unread_kinds,
    unread_messages,
    unread_stores,
)
from tests.baseline.fleet import CLOUD, DEVICES, SITE, CommandFleet, sojourn
from tests.live.live_fleet import compile_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """The baseline's folder; a fleet that cannot read it would only fail after long waits."""
    folder = unpack_baseline(tmp_path)
    assert not [*unread_stores(folder), *unread_kinds(folder), *unread_messages(folder)], ADVICE
    return folder


@pytest.fixture
def fleet(baseline: Path) -> Iterator[CommandFleet]:
    """A fleet of today's code on the baseline's stores."""
    live = CommandFleet(baseline / "fleet")
    yield live
    live.stop()


@pytest.fixture
def mixed(baseline: Path) -> Iterator[CommandFleet]:
    """A fleet of which only the coordinator runs today's code."""
    live = CommandFleet(baseline / "fleet", baseline / "source", (SITE, *DEVICES))
    yield live
    live.stop()


def served(fleet: CommandFleet) -> list[int]:
    """The versions of the release that programs on the devices get; each predicts."""
    found = []
    for device in DEVICES:
        with Model("digits", fleet.folder / "stores" / device) as model:
            assert model.predict(np.zeros((2, 1, 8, 8), np.float32)).shape == (2, 10)
            found.append(model.version)
    return found


def assert_resumed(fleet: CommandFleet) -> None:
    """The job ended, no visit was trained twice, and the model has the bits of the undisturbed job."""
    folder = fleet.folder
    assert "done" in fleet.ask("job", "watch", "midway")
    assert sorted(fleet.trained("midway")) == ["midway round 4 tour 6 hop 1", "midway round 4 tour 6 hop 2"]
    ours, theirs = fleet.export("midway"), folder / "undisturbed.onnx"
    assert distance(ours, theirs) < CLOSE
    assert distance(folder / "shorter.onnx", theirs) > 10 * CLOSE
    if distance(ours, theirs) > 0:  # only on another kind of CPU, where the undisturbed job gives other bits, too
        job = (folder / "job-undisturbed.toml").read_text()
        (folder / "again.toml").write_text(job.replace("undisturbed", "again"))
        fleet.ask("job", "submit", "again.toml", "--watch")
        assert distance(fleet.export("again"), ours) == 0


def test_baseline_stores_open_and_job_and_releases_resume(fleet: CommandFleet) -> None:
    assert served(fleet) == [1, 1]
    printed = sojourn("agent", "predict", "digits", "pi-1.npz", "--store", "stores/pi-1", "--json", folder=fleet.folder)
    assert len(json.loads(printed)["rows"]) == 60
    fleet.start()
    assert_resumed(fleet)
    assert "digits" in sojourn("release", "show", "digits-2.release", folder=fleet.folder)
    fleet.roll_out("digits-2.release")
    assert served(fleet) == [2, 2]


def test_fleet_upgrades_node_by_node_while_running(mixed: CommandFleet) -> None:
    """In the order that docs/upgrading.md names: the coordinator, the edge servers, the devices."""
    mixed.start()
    mixed.wait_for(CLOUD, "job midway round 3: accuracy")
    mixed.upgrade(SITE)
    assert_resumed(mixed)
    mixed.upgrade(DEVICES[0])
    job = (mixed.folder / "job-shorter.toml").read_text().replace("shorter", "new").replace("rounds = 3", "rounds = 1")
    compile_here(job)
    (mixed.folder / "new.toml").write_text(job)
    assert "done" in mixed.ask("job", "submit", "new.toml", "--watch")
    assert len(mixed.trained("new")) == 2 * len(DEVICES)  # one estimate and one visit each
    mixed.roll_out("digits-2.release")
    assert served(mixed) == [2, 2]


def test_baseline_backup_is_restored(baseline: Path) -> None:
    folder = baseline / "fleet"
    sojourn("coordinator", "restore", "backup.tar", "--store", "restored", folder=folder)
    assert (folder / "restored" / "journal.db").exists()
    assert list((folder / "restored" / "blobs").iterdir())
