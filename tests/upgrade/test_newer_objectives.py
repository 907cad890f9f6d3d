"""Objectives that 0.9.0 does not know: its agents and edge servers are left out by name, and the others go on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.live.live_fleet import compile_here
from tests.upgrade.command_fleet import DEVICES, SITE, CommandFleet, sojourn
from tests.upgrade.kept import unpack
from tests.upgrade.versions import kept_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "0.9.0"
"""The last one without the baselines of 0.10.0; what came after them it does not know either."""
OLD, NEW = DEVICES
JOB = """
name = "{name}"
strategy = "{name}"
{more}
threads = 1
gate = {{ on = false }}
[training]
epochs = 1
[model]
options = {{ hidden = [8] }}
[data]
test = "digits"
exemplars_per_class = 2
[fleet]
devices = 1
"""
JOBS = {
    "ma-echo": "finisher = { tau = 2 }",
    "fedbn": "rounds = 1",
    "keel": "rounds = 1\narranger = { sets = 1, size = 1 }",
}
ASKS = {
    "ma-echo": ("objective echo", "model objective echo"),
    "fedbn": ("objective local-norms", "model own"),
    "keel": ("objective logit-adjustment", "model objective logit-adjustment"),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = kept_source(VERSION, tmp_path_factory.mktemp("before"))
    assert sojourn("--version", folder=tree.parent, tree=tree).split()[1].rstrip(",") == VERSION
    return tree


def job(name: str) -> str:
    return JOB.format(name=name, more=JOBS[name])


def new_fleet(folder: Path, old: dict[str, Path]) -> CommandFleet:
    """The kept fleet's settings and data, with stores that are empty; both owners share what each version can."""
    unpack(VERSION, folder, "fleet.tar.gz")
    shutil.rmtree(folder / "stores")
    for device, shares in ((OLD, '["class-counts"]'), (NEW, '["class-counts", "projections"]')):
        file = folder / f"{device}.toml"
        file.write_text(f"shares = {shares}\n{file.read_text()}")
    for name in JOBS:
        (folder / f"{name}.toml").write_text(job(name))
    return CommandFleet(folder, old)


@pytest.fixture(scope="module")
def fleet(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandFleet]:
    """One agent of then beside one of now."""
    fleet = new_fleet(tmp_path_factory.mktemp("fleet"), {OLD: before})
    try:
        fleet.start()
        fleet.wait(lambda: OLD in fleet.ask("fleet", "status"), f"{OLD} to be here")
        yield fleet
    finally:
        fleet.stop()


@pytest.mark.parametrize("name", JOBS)
def test_an_old_agent_is_left_out_by_name_and_the_others_train(fleet: CommandFleet, name: str) -> None:
    compile_here(job(name))
    assert "done" in fleet.ask("job", "submit", f"{name}.toml", "--watch")
    told = " ".join(fleet.ask("job", "status", name).split())
    assert "left out, without all that the job asks for" in told
    for word in ASKS[name]:
        assert word in told
    assert f"update their agents and edge servers: {OLD}" in told
    assert fleet.trained(name)
    assert f"trained {name} " not in fleet.log(OLD)


def test_behind_an_old_edge_server_nobody_trains_and_the_job_says_why(before: Path, tmp_path: Path) -> None:
    fleet = new_fleet(tmp_path, {SITE: before})
    try:
        fleet.start()
        fleet.wait(lambda: NEW in fleet.ask("fleet", "status"), f"{NEW} to be here")
        compile_here(job("ma-echo"))
        fleet.ask("job", "submit", "ma-echo.toml")
        told = f"update their agents and edge servers: {OLD}, {NEW}"
        fleet.wait(lambda: told in " ".join(fleet.ask("job", "status", "ma-echo").split()), told)
        assert fleet.trained("ma-echo") == []
        fleet.upgrade(SITE)
        assert "done" in fleet.ask("job", "watch", "ma-echo")
        assert fleet.trained("ma-echo")
        assert "trained ma-echo " not in fleet.log(OLD)  # it is of today, and its owner does not share projections
    finally:
        fleet.stop()
