"""Jobs of every kind from files to metrics: estimated, interrupted, continued, rounded, refused."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest

from coordinator.records import ENDED
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from edge_agent.training.trainer import InlineTraining, Trainer
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.links.link import Link
from sojourn.links.memory import MemoryBroker, MemoryLink
from sojourn.links.settings import OWN_BROKER_PAYLOAD
from sojourn.node.node import Node
from sojourn.protocol.operator_messages import Continue
from sojourn.protocol.task import ABILITIES, OF_MODELS
from sojourn.protocol.topics import Role
from sojourn.protocol.wire import Offer
from tests.fleet_sim.task_fleet import DEVICES, SITES, files, kit_of, model_of, run_task, task_fleet, task_job

MAIN = {"regression": "rmse", "reconstruction": "rmse", "forecast": "rmse", "multilabel": "macro_f1"}
VISIT: dict[str, Any] = {"strategy": "visit", "estimator__epochs": 1, "arranger__sets": 2, "arranger__size": 3}


@pytest.mark.parametrize("kind", ["regression", "reconstruction", "forecast", "multilabel", "tokens"])
def test_every_task_kind_learns(kind: str) -> None:
    rate = 0.3 if kind == "reconstruction" else 0.05
    changes: dict[str, Any] = {"rounds": 4, "training__epochs": 4, "training__lr": rate}
    state, model, fleet = run_task(task_job(kind, strategy="fedavg", **changes), kind)
    assert state.status == "done", state.detail
    kit = kit_of(state, fleet)
    assert kit.learns.kind == kind
    assert np.isfinite(model).all()
    first, last = state.history[0], state.history[-1]
    assert last.loss < first.loss
    assert last.loss < kit.learns.blind
    assert isnan(last.accuracy) == (kind not in ("multilabel", "tokens"))
    assert state.best == 4
    metrics = last.metrics
    assert metrics[MAIN.get(kind, "perplexity")] > 0


@pytest.mark.parametrize("where", ["server", "device"])
def test_signature_shows_the_strata_a_device_predicts_well(where: str) -> None:
    changes: dict[str, Any] = {**VISIT, "estimator__epochs": 8, "estimator__where": where, "rounds": 1}
    state, _, fleet = run_task(task_job("regression", task__targets=None, **changes), "regression")
    assert state.status == "done", state.detail
    rows = np.array([state.signatures[f"dev-{at}"] for at in range(6)])
    assert ((rows >= 0) & (rows <= 1)).all()
    # Devices hold ranges of the first quantity, from low to high: those at the ends are the most different.
    apart = np.linalg.norm(rows[:, np.newaxis] - rows[np.newaxis], axis=2)
    assert apart[0, 5] > apart[0, 1]
    assert apart[0, 5] > apart[4, 5]
    assert len(kit_of(state, fleet).learns.strata.centres) == 4  # two quantities fall into clusters


def test_signatures_are_equal_on_device_and_server() -> None:
    found = [
        run_task(task_job("reconstruction", **VISIT, rounds=1, estimator__where=where), "reconstruction")[0].signatures
        for where in ("server", "device")
    ]
    assert found[0] == found[1]


def test_samples_are_counted_by_stratum() -> None:
    state, _, fleet = run_task(
        task_job("regression", strategy="naive-gsp-icg", arranger__sets=3, rounds=1), "regression"
    )
    assert state.status == "done", state.detail
    assert {sum(row) for row in state.signatures.values()} == {40.0}
    assert all(len(row) == kit_of(state, fleet).learns.strata.count for row in state.signatures.values())


def test_killed_coordinator_resumes_to_the_same_bits() -> None:
    text = task_job("reconstruction", **VISIT, encoding="int8")
    _, model, _ = run_task(text, "reconstruction")
    fleet = task_fleet("reconstruction")
    fleet.submit(text)
    machine = fleet.nodes[CLOUD].node.machine
    fleet.world.run(lambda: len(machine.state.jobs["job"].history) == 2, 1e5)  # type: ignore[attr-defined]
    fleet.kill(CLOUD)
    fleet.start(CLOUD)
    state = fleet.run("job")
    assert state.status == "done", state.detail
    assert np.array_equal(model_of(state, fleet), model)
    exact, *_ = run_task(task_job("reconstruction", **VISIT), "reconstruction")
    assert exact.history[-1].loss != state.history[-1].loss  # rounded numbers differ


def test_target_metric_ends_a_job_and_a_new_target_continues_it() -> None:
    whole, *_ = run_task(task_job("regression", strategy="fedavg", rounds=6), "regression")
    reached = whole.history[1].metrics["rmse"] + 1e-9
    text = task_job("regression", strategy="fedavg", rounds=6, target=f"rmse <= {reached!r}")
    fleet = task_fleet("regression")
    fleet.submit(text)
    state = fleet.run("job")
    assert len(state.history) == 2
    assert state.detail.startswith("the target rmse <= ")
    fleet.ask(Continue("more", "job", goal="loss <= 0.000001"))
    assert fleet.job("job").status not in ENDED
    state = fleet.run("job")
    assert [it.loss for it in state.history] == [it.loss for it in whole.history]


class WithALesserAgent(MemoryFleet):
    """A fleet in which dev-0 offers only what plain classification needs."""

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        if name != "dev-0":
            return super()._agent(name, data, broker)
        plain = tuple(word for word in ABILITIES if word not in OF_MODELS)
        offer = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", ("class-counts",), plain)
        links: dict[Role, Link] = {"edge": MemoryLink(broker, OWN_BROKER_PAYLOAD)}
        return self._node(Agent(name, offer), links, lambda store: InlineTraining(Trainer(store.blobs, data)))


def test_an_agent_that_does_not_know_the_task_is_left_out() -> None:
    devices = {name: DataSettings(path=path) for name, path in files("regression")[0].items()}
    fleet = WithALesserAgent(devices, SITES)
    fleet.submit(task_job("regression", strategy="fedavg", fleet__devices=5, rounds=1))
    state = fleet.run("job")
    assert state.status == "done", state.detail
    assert state.history[0].visits == 5
    assert state.visits.keys() == {*DEVICES[1:]}
    notes = " ".join((*state.notices, *state.history[0].failures))
    assert "dev-0" in notes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data__test": files("reconstruction")[1]}, "labels such as 'broken'"),
        ({"task__targets": ["a", "b", "c"]}, "predicts 'a', 'b', 'c'"),
        ({"model__name": "cnn", "model__options__hidden": 8}, "cnn takes images"),
    ],
)
def test_job_with_unsuitable_data_is_refused(changes: dict[str, Any], reason: str) -> None:
    state, *_ = run_task(task_job("regression", strategy="fedavg", **changes), "regression")
    assert state.status == "refused"
    assert reason in state.detail
