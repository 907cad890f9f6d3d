"""FedBN and MetaFed in whole jobs: limiting cases, models kept on devices, and effects of failures."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.releases.making import check_outcome
from coordinator.strategies import named
from edge_agent.agent import Agent
from edge_agent.training.metafed import GOOD, MINE
from sojourn.errors import ModelError
from sojourn.links.memory import Faults
from sojourn.model import vectors
from sojourn.store.journal import MemoryStore
from tests.edge_agent.training.kits import compiled, compiled_with_state
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import Run, SmallFleet, job, kit_of_jobs, run
from tests.fleet_sim.written_out import EPOCHS, PLAIN, SITES, start, tour, train
from tests.there import there

DEVICES = tuple(device for devices in SITES.values() for device in devices)
ALL: dict[str, Any] = {"objective__validation": 0.0, "objective__test": 0.0}
"""Every sample trains, as in the written-out version."""
RING: dict[str, Any] = {"rounds": None, "schedule__trips": 2, "objective__warmup": EPOCHS, **PLAIN}


def metafed(**changes: Any) -> Run:
    done = run(job(**{"strategy": "metafed", **RING, **changes}), SITES)
    assert done.state.status == "done", done.state.detail
    assert all(report.failures == () for report in done.state.history)
    return done


def custom_models(fleet: SmallFleet) -> dict[str, tuple[str, Any]]:
    """Return what each device remembers: the name and the model."""
    found = {}
    for device in DEVICES:
        memory = machine_of(fleet, device, Agent).state.memory.get("job")
        for name, ref in memory.vectors.items() if memory else ():
            found[device] = name, vectors.load(fleet.stores[device].blobs, ref, kit_of_jobs().model)
    return found


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


# --- FedBN


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_fedbn_without_batchnorm_equals_uniform_fedavg(encoding: str) -> None:
    how = {**PLAIN, "encoding": encoding}
    ours = run(job(strategy="fedbn", objective__test=0.0, **how), SITES)
    plain = run(job(strategy="fedavg", aggregator__name="uniform-mean", **how), SITES)
    assert ours.state.status == plain.state.status == "done"
    assert ours.model.tobytes() == plain.model.tobytes()
    weighted = run(job(strategy="fedavg", **how), SITES)
    assert weighted.model.tobytes() != ours.model.tobytes()
    held_out = run(job(strategy="fedbn", objective__test=0.3, **how), SITES)
    assert held_out.model.tobytes() != ours.model.tobytes()


def test_report_has_own_model_accuracy_and_device_count() -> None:
    done = run(job(strategy="fedbn", **PLAIN), SITES)
    for report in done.state.history:
        metrics = report.metrics
        assert metrics["own_devices"] == len(DEVICES)
        assert 0 < metrics["own_accuracy"] <= 1
        assert metrics["own_accuracy_spread"] > 0
        assert "macro_f1" in metrics  # metrics of the job's model, which is also evaluated
        assert np.isfinite(report.accuracy)


def test_impossible_metric_is_dropped() -> None:
    fleet = SmallFleet(SITES)

    def lie(work: Any, outcome: Any, _blobs: Any) -> Any:
        del work
        claimed = {**outcome.outcome.metrics, "own_accuracy": 7.0, "merged_accuracy": -1.0}
        return msgspec.structs.replace(outcome, outcome=msgspec.structs.replace(outcome.outcome, metrics=claimed))

    fleet.changes["dev-1"] = lie
    fleet.submit(job(strategy="fedbn", **PLAIN))
    for report in fleet.run("job").history:
        metrics = report.metrics
        assert metrics["own_devices"] == len(DEVICES) - 1
        assert 0 <= metrics["own_accuracy"] <= 1
        assert 0 <= metrics["merged_accuracy"] <= 1


# --- MetaFed


def test_metafed_above_every_threshold_is_a_chain() -> None:
    done = metafed(objective__threshold=1.1, **ALL)
    w, _ = train(start(), DEVICES[0], 1)
    for number in (2, 3):
        w, _ = tour(w, DEVICES, number)
    close(done.model, w)
    mine = custom_models(done.fleet)
    assert {name for name, _ in mine.values()} == {MINE}
    for device in DEVICES:  # the last phase copies the last device's model and trains it
        close(mine[device][1], train(w, device, 4)[0])


def test_metafed_below_every_threshold_trains_devices_alone() -> None:
    done = metafed(objective__threshold=-0.5, objective__lam=0.0, **ALL)
    mine = custom_models(done.fleet)
    assert {name for name, _ in mine.values()} == {GOOD}
    for device in DEVICES:
        w = start()
        for number in (1, 2, 3, 4):
            w, _ = train(w, device, number)
            if (device, number) == (DEVICES[-1], 3):
                close(done.model, w)
        close(mine[device][1], w)


def test_metafed_trains_devices_alone_in_first_and_last_round() -> None:
    done = metafed(schedule__trips=3)
    plans = [[tour.hops for tour in plan.tours] for plan in done.fleet.ledger.plans]
    alone = [(device,) for device in DEVICES]
    ring = list(SITES.values())
    assert plans == [alone, ring, ring, ring, alone]
    assert [report.visits for report in done.state.history] == [6] * 5
    before, after = done.state.history[-2:]
    assert after.accuracy == before.accuracy  # models that devices train alone are not sent back
    assert all(report.metrics["own_devices"] == 6 for report in done.state.history)


def test_lost_visit_keeps_own_model_and_the_ring_continues() -> None:
    fleet: list[SmallFleet] = []

    def hot() -> tuple[str, str] | None:
        return ("hot", "81 degrees") if len(fleet[0].job("job").history) + 1 in (2, 4) else None

    fleet.append(SmallFleet(SITES, objections={DEVICES[0]: hot}))
    fleet[0].submit(job(strategy="metafed", **{**RING, "objective__threshold": 1.1, **ALL}))
    state = fleet[0].run("job")
    assert state.status == "done", state.detail
    assert [report.lost for report in state.history] == [0, 1, 0, 1]
    w, _ = train(start(), DEVICES[1], 1)  # if the first is lost, the next device is the first
    w, _ = tour(w, DEVICES[1:], 2)
    w, _ = tour(w, DEVICES, 3)
    close(fleet[0].model(), w)
    mine = custom_models(fleet[0])
    close(mine[DEVICES[0]][1], tour(tour(train(start(), DEVICES[1], 1)[0], DEVICES[1:], 2)[0], DEVICES[:1], 3)[0])


def test_device_with_lost_store_starts_with_the_received_model() -> None:
    fleet = SmallFleet(SITES)
    fleet.submit(job(strategy="metafed", **{**RING, "objective__threshold": -0.5, "objective__lam": 0.0, **ALL}))

    fleet.world.run(lambda: len(fleet.job("job").history) == 1 and not fleet.job("job").tours)
    fleet.kill("dev-4")
    fleet.stores["dev-4"] = MemoryStore()
    fleet.start("dev-4")
    state = fleet.run("job")
    assert state.status == "done", state.detail
    lines = [line for report in state.history for line in report.failures]
    assert any("dev-4: lost its memory of this job (it has 0 of 1 visits)" in line for line in lines)
    mine = custom_models(fleet)
    assert len(mine) == len(DEVICES)
    others: Any = start()
    for number in (1, 2):  # the device before it trains alone, and passes its model on
        others, _ = train(others, "dev-3", number)
    w, _ = train(others, "dev-4", 2)
    for number in (3, 4):
        w, _ = train(w, "dev-4", number)
    close(mine["dev-4"][1], w)


@pytest.mark.parametrize("strategy", ["fedbn", "metafed"])
@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_lossy_link_gives_the_same_bits_even_compressed(strategy: str, encoding: str) -> None:
    more = {"metafed": {**RING, "objective__threshold": 0.3}, "fedbn": PLAIN}[strategy]
    text = job(strategy=strategy, encoding=encoding, **more)
    clean, rough = run(text, SITES), run(text, SITES, Faults(loss=0.2, repeat=0.2, delay=0.01, spread=0.4, seed=3))
    assert clean.state.status == rough.state.status == "done"
    assert clean.model.tobytes() == rough.model.tobytes()
    for device, (name, model) in custom_models(clean.fleet).items():
        assert custom_models(rough.fleet)[device][0] == name
        assert custom_models(rough.fleet)[device][1].tobytes() == model.tobytes()


KNOBS: list[dict[str, Any]] = [
    {},
    {"objective__threshold": 1.1},
    {"objective__lam": 0.0},
    {"objective__lam": 3.0},
    {"objective__layer": "logits"},
    {"objective__floor": 1.0},
    {"objective__validation": 0.1},
    {"objective__test": 0.2},
    {"objective__warmup": 3},
    {"schedule__trips": 3},
]


def test_every_parameter_changes_a_model_on_a_device() -> None:
    ends = [custom_models(metafed(**{"objective__threshold": 0.3, **knob}).fleet) for knob in KNOBS]
    assert len({b"".join(model.tobytes() for _, model in end.values()) for end in ends}) == len(KNOBS)


# --- requirements and shared results


def test_agents_without_the_objective_are_skipped_by_name() -> None:
    class Mixed(SmallFleet):
        def _agent(self, name: str, data: Any, broker: Any) -> Any:
            node = super()._agent(name, data, broker)
            if name == "dev-2":
                agent, early = node.machine, ("sgd", "prox", "dyn", "scaffold", "sam", "elmy")
                assert isinstance(agent, Agent)
                agent.offer = msgspec.structs.replace(there(agent.offer), objectives=early)
            return node

    fleet = Mixed(SITES)
    fleet.submit(job(strategy="fedbn", **{**PLAIN, "fleet__devices": 5}))
    state = fleet.run("job")
    assert state.status == "done", state.detail
    assert [report.visits for report in state.history] == [5, 5]
    assert any("dev-2" in line and "local-norms" in line for line in state.history[0].failures)


def test_release_of_models_kept_on_devices_is_refused() -> None:
    plain, normed = compiled().kit.model, compiled_with_state().kit.model
    refused = partial(pytest.raises, ModelError)
    with refused(match="BatchNorm layers never left it"):
        check_outcome(named("fedbn", ""), normed, named=True)
    check_outcome(named("fedbn", ""), plain, named=False)
    with refused(match="set its round"):
        check_outcome(named("metafed", ""), plain, named=False)
    check_outcome(named("metafed", ""), plain, named=True)
    check_outcome(named("fedavg", ""), normed, named=False)
