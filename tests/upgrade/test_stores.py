"""The stores of a fleet of an earlier version, killed in the middle of a job, are opened and gone on with."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edge_agent import Model
from tests.live.live_fleet import compile_here
from tests.upgrade.command_fleet import CLOUD, DEVICES, CommandFleet, sojourn
from tests.upgrade.kept import CLOSE, VERSIONS, apart, trained_before, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fleet(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandFleet]:
    folder = unpack(version, tmp_path_factory.mktemp("kept"), "fleet.tar.gz")
    compile_here((folder / "job-queued.toml").read_text())
    live = CommandFleet(folder)
    yield live
    live.stop()


def served(fleet: CommandFleet) -> list[int]:
    """The versions that programs on the devices are given; each predicts."""
    found = []
    for device in DEVICES:
        with Model("digits", fleet.folder / "stores" / device) as model:
            assert model.predict(np.zeros((2, 1, 8, 8), np.float32)).shape == (2, 10)
            found.append(model.version)
    return found


def test_the_release_that_was_installed_is_served_before_anything_runs(fleet: CommandFleet) -> None:
    assert served(fleet) == [1, 1]
    told = sojourn("agent", "predict", "digits", "pi-1.npz", "--store", "stores/pi-1", "--json", folder=fleet.folder)
    assert len(json.loads(told)["rows"]) == 60


def test_the_job_goes_on_where_it_was_and_ends_as_if_nothing_had_happened(fleet: CommandFleet, version: str) -> None:
    fleet.start()
    assert "done" in fleet.ask("job", "watch", "midway")
    before, now = trained_before(version), fleet.trained("midway")
    assert sorted(now) == ["midway round 4 tour 6 hop 1", "midway round 4 tour 6 hop 2"]
    assert not before & {*now}
    ours, theirs = fleet.export("midway"), fleet.folder / "undisturbed.onnx"
    assert apart(ours, theirs) < CLOSE
    assert apart(fleet.folder / "shorter.onnx", theirs) > 10 * CLOSE  # a round less is far from it
    if apart(ours, theirs) > 0:  # on a CPU of another kind, where the same job undisturbed gives other bits, too
        fleet.ask("job", "submit", "job-undisturbed.toml", "--name", "again", "--watch")
        assert apart(fleet.export("again"), theirs) > 0


def test_the_job_that_was_queued_behind_it_is_done_too(fleet: CommandFleet) -> None:
    assert "done" in fleet.ask("job", "watch", "queued")
    trained = fleet.trained("queued")
    assert len(trained) == len({*trained}) == 4


def test_a_release_file_of_then_is_shown_and_rolled_out(fleet: CommandFleet) -> None:
    assert "digits" in sojourn("release", "show", "digits-2.release", folder=fleet.folder)
    fleet.roll_out("digits-2.release")
    assert served(fleet) == [2, 2]


def test_a_backup_of_then_is_restored_and_its_job_goes_on(version: str, tmp_path: Path) -> None:
    """The backup is of the job's second round; the site and the devices have done more since."""
    folder = unpack(version, tmp_path, "fleet.tar.gz")
    shutil.rmtree(folder / "stores" / CLOUD)
    sojourn("coordinator", "restore", "backup.tar", "--settings", "cloud.toml", folder=folder)
    live = CommandFleet(folder)
    try:
        live.start()
        assert "done" in live.ask("job", "watch", "visited")
        kept = (folder / "visited.onnx").rename(folder / "kept.onnx")
        assert apart(live.export("visited"), kept) < CLOSE
        assert len(live.trained("visited")) <= 2
    finally:
        live.stop()
