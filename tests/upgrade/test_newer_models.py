"""Models that 0.5.0 would misread: its agents and edge servers are left out by name, and decline what reaches them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from coordinator.rounds.kit_cache import KitCache
from coordinator.rounds.preparing import PrepareJob, prepare
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.live.live_fleet import compile_here
from tests.upgrade.command_fleet import DEVICES, SITE, CommandFleet, environment_of
from tests.upgrade.kept import unpack
from tests.upgrade.versions import kept_source

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.5.0"
"""The last one that knew nothing of state, frozen weights and trunks."""
OLD, NEW = DEVICES
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""
MODELS = {
    "state": 'name = "tests.fleet_sim.batchnorm_net:NormalisedRows"\noptions = { classes = 10 }',
    "trunk": 'name = "mlp"\ntrains = ["3.*"]',
    "frozen": 'name = "mlp"\ntrains = ["3.*"]\ntrunk = "whole"',
}
ASKS = {"state": ("model state",), "trunk": ("model frozen", "model trunk"), "frozen": ("model frozen",)}

DECLINED = {"state": "gives gradient, loss, state", "trunk": "takes x as float32[?, 64]", "frozen": "'frozen/1.weight'"}


def job(name: str, model: str) -> str:
    return f"""
name = "{name}"
strategy = "fedavg"
rounds = 1
threads = 1
[model]
{model}
[data]
test = "digits"
exemplars_per_class = 2
[fleet]
devices = 1
[training]
epochs = 1
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_source(VERSION, tmp_path_factory.mktemp("before"))


def new_fleet(folder: Path, old: dict[str, Path]) -> CommandFleet:
    """The kept fleet's settings and data, with stores that are empty."""
    unpack(VERSION, folder, "fleet.tar.gz")
    shutil.rmtree(folder / "stores")
    (folder / "own_net.py").write_text(NET)
    (folder / "state.toml").write_text(job("state", 'name = "own_net:Net"'))
    for name in ("trunk", "frozen"):
        (folder / f"{name}.toml").write_text(job(name, MODELS[name]))
    return CommandFleet(folder, old)


def test_an_old_agent_is_left_out_by_name_and_the_others_train(before: Path, tmp_path: Path) -> None:
    fleet = new_fleet(tmp_path, {OLD: before})
    try:
        fleet.start()
        fleet.wait(lambda: OLD in fleet.ask("fleet", "status"), f"{OLD} to be here")
        compile_here(job("trunk", MODELS["trunk"]))
        for name in ("state", "trunk"):
            assert "done" in fleet.ask("job", "submit", f"{name}.toml", "--watch")
            said = " ".join(fleet.ask("job", "status", name).split())
            for word in ASKS[name]:
                assert word in said
            assert f"update their agents and edge servers: {OLD}" in said
            trained = fleet.trained(name)
            assert trained
            assert f"trained {name} " not in fleet.log(OLD)
    finally:
        fleet.stop()


def test_behind_an_old_edge_server_nobody_trains_and_the_job_says_why(before: Path, tmp_path: Path) -> None:
    fleet = new_fleet(tmp_path, {SITE: before})
    try:
        fleet.start()
        fleet.wait(lambda: NEW in fleet.ask("fleet", "status"), f"{NEW} to be here")
        compile_here(job("trunk", MODELS["trunk"]))
        fleet.ask("job", "submit", "trunk.toml")
        told = f"update their agents and edge servers: {OLD}, {NEW}"
        fleet.wait(lambda: told in " ".join(fleet.ask("job", "status", "trunk").split()), told)
        assert fleet.trained("trunk") == []
        fleet.upgrade(SITE)
        assert "done" in fleet.ask("job", "watch", "trunk")
        assert fleet.trained("trunk")
    finally:
        fleet.stop()


@pytest.mark.parametrize(("name", "why"), DECLINED.items())
def test_an_old_agent_declines_a_kit_that_reaches_it_all_the_same(
    before: Path, tmp_path: Path, name: str, why: str
) -> None:
    blobs = MemoryBlobs()
    compiled = prepare(PrepareJob(name, job(name, MODELS[name])), blobs, KitCache())
    content = blobs.read(compiled.kit.digest)
    kit = unpack_blob(content, Kit)
    assert (bool(kit.model.state), bool(kit.frozen), bool(kit.trunk)) == (
        name == "state",
        name != "state",
        name == "trunk",
    )
    (tmp_path / "kit").write_bytes(content)
    unpack(VERSION, tmp_path, "fleet.tar.gz")
    script = (
        "from pathlib import Path\n"
        "from edge_agent.training.trainer import prepare\n"
        "from sojourn.data.source import DataSettings\n"
        "from sojourn.errors import SojournError\n"
        "from sojourn.protocol.envelope import unpack_blob\n"
        "from sojourn.protocol.spec import Kit\n"
        "from sojourn import __version__\n"
        f"assert __version__ == {VERSION!r}\n"
        "try:\n"
        "    prepare(unpack_blob(Path('kit').read_bytes(), Kit), DataSettings(path='pi-1.npz'), 1)\n"
        "except Exception as error:\n"
        "    print(f'declined: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment_of(before),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("declined: "), done.stdout
    assert why in done.stdout
