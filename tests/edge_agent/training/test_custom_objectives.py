"""Custom objectives: they run in a real training process if they are installed and listed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.run import assemble, offer
from edge_agent.settings import AgentSettings
from edge_agent.training.custom_objectives import check
from sojourn.errors import ConfigError
from sojourn.model import vectors
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.parts import OwnObjective, Prox
from sojourn.settings import read_settings
from tests.edge_agent.training.kits import Bench, compiled, visit_for
from tests.edge_agent.training.test_process import Office

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import msgspec

from edge_agent.training.objectives import VisitOutput, Plain


class Pull(msgspec.Struct):
    strength: float
    remember: bool = True

    def begin(self, w_in, received, memory):
        return _Pulling(self, w_in, memory)


class _Pulling(Plain):
    def __init__(self, settings, w_in, memory):
        self.settings, self.w_in, self.memory = settings, w_in, memory

    def direction(self, w, slope):
        loss, gradient = slope(w)
        return loss, gradient + self.settings.strength * (w - self.w_in) + self.memory.get("drift", 0.0)

    def end(self, w_out, steps, lr):
        return VisitOutput(memory={"drift": w_out - self.w_in} if self.settings.remember else {})


class Idle(msgspec.Struct):
    pass
"""
PULL = "their_package.pulls:Pull"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's package, on the path of this process and of its children."""
    package = tmp_path / "site" / "their_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pulls.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))
    yield package
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


@pytest.fixture
def office(tmp_path: Path, installed: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.workers.close()


def own(**settings: Any) -> OwnObjective:
    return OwnObjective(part=PULL, settings=settings)


def test_custom_objective_trains_in_the_training_process(office: Office) -> None:
    office.train("visit", objective=own(strength=0.4), momentum=0.5)
    outcome = office.outcome()
    assert isinstance(outcome, WorkDone)
    office.train("prox", objective=Prox(mu=0.4), momentum=0.5)
    same = office.outcome()
    assert isinstance(same, WorkDone)
    assert outcome.outcome.vectors == same.outcome.vectors
    assert outcome.outcome.metrics["remembered"] == 0
    assert "their_package" not in sys.modules

    kept = outcome.outcome.memory
    work = visit_for(office.blobs, objective=own(strength=0.4), momentum=0.5)
    office.workers.start("next", msgspec.structs.replace(work, memory=kept, remembered=1), office.received.put)
    later = office.outcome()
    assert isinstance(later, WorkDone)
    assert later.outcome.metrics["remembered"] == 1
    assert later.outcome.vectors != same.outcome.vectors


def test_missing_or_invalid_custom_objective_is_unsupported(office: Office) -> None:
    for part, settings in (
        ("their_package.pulls:Push", {}),
        ("nowhere.to:Be", {}),
        ("their_package.pulls:Idle", {}),
        (PULL, {}),
        (PULL, {"strength": "much"}),
    ):
        office.train("visit", objective=OwnObjective(part=part, settings=settings))
        outcome = office.outcome()
        assert isinstance(outcome, WorkFailed)
        assert outcome.reason == "unsupported"
        assert part in outcome.detail


def test_custom_objective_changes_result_and_may_keep_no_memory(tmp_path: Path, installed: Path) -> None:
    bench = Bench(tmp_path)
    outcome = bench.train(objective=own(strength=0.4, remember=False))
    assert outcome.memory == {}
    assert outcome.vectors != bench.train(objective=own(strength=0.5)).vectors
    assert outcome.vectors != bench.train().vectors
    drift = bench.train(objective=own(strength=0.4)).memory["drift"]
    moved = vectors.load(bench.blobs, outcome.vectors["model"], compiled().kit.model) - compiled().initial
    np.testing.assert_array_equal(vectors.load(bench.blobs, drift, compiled().kit.model), moved)


def settings_of(tmp_path: Path, **more: Any) -> AgentSettings:
    values = {"name": "pi", "data": {"path": str(tmp_path / "data.npz")}, "store": str(tmp_path / "store")}
    return read_settings(None, values | more, AgentSettings)


def test_offer_names_the_objectives_listed_by_the_owner(tmp_path: Path) -> None:
    plain = offer(settings_of(tmp_path), 1)
    assert plain.shares == ()
    assert PULL not in plain.objectives
    generous = offer(settings_of(tmp_path, objectives=[PULL], shares=["class-counts"]), 1)
    assert generous.objectives == (*plain.objectives, PULL)
    assert generous.shares == ("class-counts",)


def test_objectives_and_shares_are_read_from_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'name = "pi"\nobjectives = ["{PULL}"]\nshares = ["class-counts"]\n[data]\npath = "x.npz"\n')
    settings = read_settings(str(file), {}, AgentSettings)
    assert (settings.objectives, settings.shares) == ((PULL,), ("class-counts",))


@pytest.mark.parametrize("wrong", [{"objectives": ["module.Class"]}, {"shares": ["everything"]}])
def test_invalid_objective_and_share_lists_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings_of(tmp_path, **wrong)


def test_listed_objectives_are_checked_at_agent_start(installed: Path) -> None:
    check([PULL])
    (installed / "broken.py").write_text("raise RuntimeError('no such sensor')")
    for name, why in (
        ("their_package.pulls:Push", "has no attribute 'Push'"),
        ("nowhere.to:Be", "No module named 'nowhere'"),
        ("their_package.pulls:Idle", "no method `begin`"),
        ("their_package.broken:Any", "no such sensor"),
    ):
        with pytest.raises(ConfigError, match=f"lists {name}, which cannot be imported: .*{why}"):
            check([PULL, name])
    assert "their_package" not in sys.modules


def test_agent_does_not_start_with_a_missing_objective(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.to:Be"):
        assemble(settings_of(tmp_path, objectives=["nowhere.to:Be"]))
