"""Processes of the version before and of today in one fleet: a job that it began is ended, its release rolled out.

The code of that version is kept with its fixture. Only the newest one is run: fleets are upgraded version by version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edge_agent import Model
from sojourn import __version__
from tests.live.live_fleet import compile_here
from tests.upgrade.command_fleet import CLOUD, DEVICES, SITE, CommandFleet, sojourn
from tests.upgrade.kept import CLOSE, VERSIONS, apart, trained_before, unpack
from tests.upgrade.versions import kept_source

if TYPE_CHECKING:
    from pathlib import Path

VERSION = [each for each in VERSIONS if each != __version__][-1]
KEEL = """
name = "keel"
strategy = "keel"
rounds = 2
threads = 1
arranger = { sets = 1, size = 2 }
model = { options = { hidden = [8] } }
fleet = { devices = 2 }
[data]
test = "digits"
exemplars_per_class = 2
"""
"""Its momentum is the coordinator's alone, so devices and edge servers of the version before take part."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = kept_source(VERSION, tmp_path_factory.mktemp("before"))
    assert sojourn("--version", folder=tree.parent, tree=tree).split()[1].rstrip(",") == VERSION
    return tree


# Each version of an edge server with the other version of the coordinator, and with devices of both.
@pytest.mark.parametrize(
    "old", [(SITE, DEVICES[0]), (CLOUD, DEVICES[0])], ids=["an old edge server", "an old coordinator"]
)
def test_a_fleet_of_two_versions_ends_the_job_and_takes_the_release(
    before: Path, tmp_path: Path, old: tuple[str, ...]
) -> None:
    fleet = CommandFleet(unpack(VERSION, tmp_path, "fleet.tar.gz"), dict.fromkeys(old, before))
    try:
        fleet.start()
        fleet.ask("job", "stop", "queued")  # compiling it takes longer than all the rest
        assert "done" in fleet.ask("job", "watch", "midway")
        assert not trained_before(VERSION) & {*fleet.trained("midway")}
        assert apart(fleet.export("midway"), tmp_path / "undisturbed.onnx") < CLOSE
        fleet.roll_out("digits-2.release")
        for device in DEVICES:
            with Model("digits", tmp_path / "stores" / device) as model:
                assert model.version == 2
        if CLOUD not in old:
            compile_here(KEEL)
            (tmp_path / "keel.toml").write_text(KEEL)
            assert "done" in fleet.ask("job", "submit", "keel.toml", "--watch")
            assert all("trained keel " in fleet.log(device) for device in DEVICES)
    finally:
        fleet.stop()
