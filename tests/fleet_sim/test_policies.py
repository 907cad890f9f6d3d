"""A lost visit or site costs one hop or one tour, depending on the policy, and never the job."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.machine.coordinator import Coordinator
from edge_agent.agent import Agent
from edge_agent.training.messages import Trained
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.model import vectors
from sojourn.model.gate_rules import damaged
from sojourn.node import node as node_module
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.store.blobs import ref_of
from sojourn.store.journal import MemoryStore
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg, initial_model, kit_of_jobs, run, visit
from tests.fleet_sim.test_kills import after, events_of, undisturbed, wait

FOUR = ("dev-0", "dev-1", "dev-2", "dev-3")
ONE_SITE = {"site-a": FOUR}
CHAIN = {"rounds": 1, "arranger__sets": 1, "arranger__size": 4, "fleet__devices": 4, "tours__lease": 20}


def chain(**changes) -> str:
    return visit(**{**CHAIN, **changes})


def training(work) -> bool:
    return bool(work.visit.task.kind == "train")


def spoiled(change):
    """Replace the model that a device trained."""

    def spoil(work, outcome, blobs):
        if not training(work) or not isinstance(outcome, WorkDone):
            return outcome
        spec = kit_of_jobs().model
        before, after_ = (
            vectors.load(blobs, refs["model"], spec) for refs in (work.visit.vectors, outcome.outcome.vectors)
        )
        ref = vectors.save(blobs, change(before, after_).astype(np.float32), "float32", spec)
        made = msgspec.structs.replace(outcome.outcome, vectors={"model": ref})
        return msgspec.structs.replace(outcome, outcome=made)

    return spoil


def garbage(work, outcome, blobs):
    """Return a result that is not a vector."""
    if not training(work):
        return outcome
    ref = ref_of(b"garbage" * 100, "float32")
    blobs.put(b"garbage" * 100, ref.digest)
    return WorkDone(outcome.key, Trained({"model": ref}, 5, {}, None, {}))


def nothing(work, outcome, blobs):
    """Return a reply without a model."""
    return WorkDone(outcome.key, Trained({}, 5, {}, None, {})) if training(work) else outcome


def silent(work, outcome, blobs):
    """Return nothing, like a worker that hangs."""
    return None if training(work) else outcome


def failing(work, outcome, blobs):
    return WorkFailed(outcome.key, "memory", "no memory left") if training(work) else outcome


def nan(before, trained):
    return np.full_like(before, np.nan)


def leap(before, trained):
    return before + 1000 * (trained - before)


def run_with(text: str, changes: dict[str, Any], sites=ONE_SITE) -> tuple[SmallFleet, list[str]]:
    fleet = SmallFleet(sites)
    fleet.changes = changes
    fleet.submit(text)
    state = fleet.run("job")
    assert state.status == "done"
    return fleet, [line for report in state.history for line in report.failures]


def order_of(text: str) -> list[str]:
    """Return the devices of the only tour, in order."""
    return list(run(text, ONE_SITE).state.arranged[0].devices)


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (silent, "lost, no sign of life for 20 s"),
        (failing, "declined, memory: no memory left"),
        (spoiled(nan), "refused, by edge server site-a, because 610 of 610 numbers are not finite"),
        (garbage, "refused, by edge server site-a, because 'model' is 700 bytes of float32, not 2440 of float32"),
        (nothing, "refused, by edge server site-a, because no model returned"),
        (spoiled(leap), "refused, by edge server site-a, because the update's norm"),
    ],
    ids=["silent", "declines", "nan", "garbage", "nothing", "leap"],
)
def test_bad_visit_is_skipped(change, output) -> None:
    order = order_of(chain())
    bad = order[2]
    fleet, failures = run_with(chain(), {bad: change})
    assert len(failures) == 1
    assert failures[0].startswith(f"{bad}: {output}")
    report = fleet.job("job").history[0]
    assert (report.visits, report.lost) == (3, 1)
    without = SmallFleet({"site-a": tuple(sorted(set(FOUR) - {bad}))})
    without.submit(chain(fleet__devices=3))
    # The same three visits in the same order: the lost hop left no trace in the model.
    fleet_order = [device for device in order if device != bad]
    without.run("job")
    if list(without.job("job").arranged[0].devices) == fleet_order:
        assert np.array_equal(without.model(), fleet.model())
    assert np.isfinite(fleet.model()).all()
    assert not np.array_equal(fleet.model(), run(chain(), ONE_SITE).model)


def test_first_visit_is_checked_against_the_estimation() -> None:
    first = order_of(chain())[0]
    _, failures = run_with(chain(), {first: spoiled(leap)})
    assert [
        line.startswith(f"{first}: refused, by edge server site-a, because the update's norm") for line in failures
    ] == [True]


def test_first_visit_without_estimation_is_checked_on_exemplars() -> None:
    text = fedavg(rounds=1, fleet__devices=4)
    fleet, failures = run_with(text, {"dev-1": spoiled(leap)})
    claimed = "dev-1: refused when its model came from site site-a, the update's norm"
    assert [line.startswith(claimed) for line in failures] == [True]
    assert fleet.job("job").history[0].visits == 3


def lying(work, outcome, blobs):
    """Return an update in the wrong direction, a thousand times too long, with reports that would allow it."""
    spoil = spoiled(lambda before, trained: before - 1000 * (trained - before))
    made = spoil(work, outcome, blobs)
    if not training(work) or not isinstance(made, WorkDone):
        return made
    claimed = msgspec.structs.replace(made.outcome, samples=2**50, metrics={"steps": 2.0**50})
    return msgspec.structs.replace(made, outcome=claimed)


@pytest.mark.parametrize("text", [chain(), fedavg(rounds=1, fleet__devices=4)], ids=["visit", "fedavg"])
def test_false_step_or_sample_counts_are_refused(text) -> None:
    fleet, failures = run_with(text, {"dev-1": lying})
    assert [line.startswith("dev-1: refused") for line in failures] == [True]
    assert fleet.job("job").samples.get("dev-1", 0) < 100


def test_server_signature_overrides_a_false_device_signature() -> None:
    def choosing(work, outcome, blobs):
        if training(work):
            return outcome
        claimed = msgspec.structs.replace(outcome.outcome, signature=(1.0,) * 10)
        return msgspec.structs.replace(outcome, outcome=claimed)

    fleet, _ = run_with(chain(), {"dev-2": choosing})
    assert fleet.job("job").signatures == run(chain(), ONE_SITE).state.signatures


@pytest.mark.parametrize("mark", [(1.5,) * 10, (-0.1,) * 10], ids=["over 1", "under 0"])
def test_signature_must_consist_of_probabilities(mark) -> None:
    def lies(work, outcome, blobs):
        if training(work):
            return outcome
        return msgspec.structs.replace(outcome, outcome=msgspec.structs.replace(outcome.outcome, signature=mark))

    fleet, _ = run_with(chain(estimator__where="device"), {"dev-2": lies})
    assert set(fleet.job("job").signatures) == set(FOUR) - {"dev-2"}


def test_gate_can_be_disabled() -> None:
    bad = order_of(chain())[2]
    text = chain(gate__on=False)
    fleet, failures = run_with(text, {bad: spoiled(leap)})
    assert failures == []
    assert not np.array_equal(fleet.model(), run(text, ONE_SITE).model)


def test_gate_checks_the_loss() -> None:
    bad = order_of(chain())[2]
    opposite = spoiled(lambda before, trained: before - 8 * (trained - before))
    _, failures = run_with(chain(gate__loss_factor=2.0), {bad: opposite})
    assert failures[0].startswith(
        f"{bad}: refused, by edge server site-a, because the loss on the exemplars went from "
    )


def test_retry_asks_the_same_device_again() -> None:
    bad = order_of(chain())[1]
    tries: list[int] = []

    def once(work, outcome, blobs):
        if training(work):
            tries.append(1)
        return failing(work, outcome, blobs) if len(tries) == 1 and training(work) else outcome

    fleet, failures = run_with(chain(tours__on_lost_visit="retry"), {bad: once})
    assert failures == [f"{bad}: declined, memory: no memory left"]
    assert fleet.job("job").history[0].visits == 4
    assert np.array_equal(fleet.model(), run(chain(), ONE_SITE).model)


def test_retry_gives_up_after_the_limit() -> None:
    bad = order_of(chain())[1]
    fleet, failures = run_with(chain(tours__on_lost_visit="retry", tours__retries=2), {bad: failing})
    assert failures == [f"{bad}: declined, memory: no memory left (3 times)"]
    assert fleet.job("job").history[0].visits == 3


def test_swap_uses_a_spare_device() -> None:
    text = chain(arranger__size=3, tours__on_lost_visit="swap")
    order = order_of(text)
    spare = (set(FOUR) - set(order)).pop()
    fleet, failures = run_with(text, {order[1]: silent})
    assert failures == [f"{order[1]}: lost, no sign of life for 20 s"]
    assert fleet.job("job").history[0].visits == 3
    assert any(device == spare and "/1/" in key for device, key in fleet.ledger.finished)


def test_swap_without_a_spare_skips_the_visit() -> None:
    fleet, failures = run_with(chain(tours__on_lost_visit="swap"), {"dev-1": failing})
    assert len(failures) == 1
    assert fleet.job("job").history[0].visits == 3


def test_permanently_lost_device_costs_one_hop() -> None:
    fleet = SmallFleet(ONE_SITE)
    fleet.submit(chain())
    fleet.world.run(lambda: fleet.job("job").phase == "train" and bool(fleet.job("job").tours))
    fleet.kill(fleet.job("job").tours[0].hops[1])
    assert fleet.run("job").status == "done"
    assert fleet.job("job").history[0].visits == 3


def test_model_is_unchanged_when_all_devices_fail() -> None:
    fleet = SmallFleet(ONE_SITE)
    fleet.changes = dict.fromkeys(FOUR, spoiled(nan))
    fleet.submit(chain(rounds=2))
    state = fleet.run("job")
    why = f"by edge server site-a, because {damaged('610 of 610 numbers are not finite')}"
    assert (state.status, state.history) == ("failed", [])
    assert f"every result was refused: 4 devices (dev-0, dev-1, dev-2, dev-3): refused, {why}" in state.detail
    assert np.array_equal(fleet.model(), initial_model())


def test_declining_device_is_skipped() -> None:
    fleet = SmallFleet(ONE_SITE, objections={"dev-1": lambda: ("hot", "81 degrees")})
    fleet.submit(fedavg(rounds=2, fleet__devices=4))
    state = fleet.run("job")
    assert [report.failures for report in state.history] == [("dev-1: declined, hot: 81 degrees",)] * 2
    assert not any(device == "dev-1" for device, _ in fleet.ledger.begun)


def test_device_is_excluded_after_two_failed_estimations() -> None:
    fleet = SmallFleet(ONE_SITE, objections={"dev-1": lambda: ("hot", "81 degrees")})
    fleet.submit(chain(rounds=2))
    state = fleet.run("job")
    assert state.status == "done"
    assert state.silent == {"dev-1": 2}
    assert set(state.signatures) == set(FOUR) - {"dev-1"}
    assert [report.visits for report in state.history] == [3, 3]


@pytest.mark.parametrize("mark", [(float("nan"),) * 10, (0.5,) * 3, ()], ids=["nan", "short", "empty"])
def test_invalid_signature_does_not_stop_the_job(mark) -> None:
    def lying(work, outcome, blobs):
        if training(work):
            return outcome
        return msgspec.structs.replace(outcome, outcome=msgspec.structs.replace(outcome.outcome, signature=mark))

    fleet, _ = run_with(chain(estimator__where="device"), {"dev-2": lying})
    assert set(fleet.job("job").signatures) == set(FOUR) - {"dev-2"}


def lose_site(text: str, *, one_broker: bool, back_after: float | None = None, keep_store: bool = True) -> SmallFleet:
    """Kill site-a while both sites train the first round."""
    fleet = SmallFleet(TWO_SITES, one_broker=one_broker)
    fleet.submit(text)
    fleet.world.run(lambda: fleet.job("job").phase == "train" and len(fleet.job("job").tours) > 0)
    sites = {tour.site for tour in fleet.job("job").tours}
    assert "site-a" in sites
    wait(fleet, 1.0)
    fleet.kill("site-a")
    if back_after is not None:
        wait(fleet, back_after)
        if not keep_store:
            fleet.stores["site-a"] = MemoryStore()
        fleet.start("site-a")
    fleet.run("job", 2000)
    return fleet


SITE: dict[str, Any] = {"rounds": 1, "fleet__devices": 4, "tours__site_lease": 30}


def test_wait_policy_waits_for_the_site() -> None:
    text = fedavg(tours__on_lost_site="wait", **SITE)
    fleet = lose_site(text, one_broker=False, back_after=500)
    assert fleet.job("job").status == "done"
    assert np.array_equal(fleet.model(), run(text).model)
    assert set(fleet.ledger.finished.values()) == {1}
    for_ever = lose_site(text, one_broker=False)
    assert for_ever.job("job").status == "running"


def test_drop_policy_continues_without_the_site() -> None:
    fleet = lose_site(fedavg(tours__on_lost_site="drop", **SITE), one_broker=False)
    report = fleet.job("job").history[0]
    assert fleet.job("job").status == "done"
    assert (report.tours, report.visits) == (2, 2)
    assert report.failures == ("2 devices (dev-0, dev-1): not visited, site site-a: no sign of life for 30 s",)
    alone = SmallFleet({"site-b": ("dev-2", "dev-3")})
    alone.submit(fedavg(**(SITE | {"fleet__devices": 2})))
    alone.run("job")
    assert np.array_equal(fleet.model(), alone.model())


def test_reassign_policy_uses_a_site_that_reaches_the_devices() -> None:
    text = fedavg(tours__on_lost_site="reassign", **SITE)
    fleet = lose_site(text, one_broker=True)
    report = fleet.job("job").history[0]
    assert fleet.job("job").status == "done"
    assert (report.visits, report.failures) == (4, ())
    assert np.array_equal(fleet.model(), run(text, one_broker=True).model)


def test_reassign_without_an_alternative_drops_the_tours() -> None:
    fleet = lose_site(fedavg(tours__on_lost_site="reassign", **SITE), one_broker=False)
    assert fleet.job("job").status == "done"
    assert fleet.job("job").history[0].visits == 2


def test_lost_site_that_returns_causes_no_disturbance() -> None:
    text = fedavg(tours__on_lost_site="reassign", **(SITE | {"rounds": 3}))
    fleet = lose_site(text, one_broker=True, back_after=45)
    assert fleet.job("job").status == "done"
    assert np.array_equal(fleet.model(), run(text, one_broker=True).model)


@pytest.mark.parametrize("text", [fedavg(**SITE), visit(**SITE)])
def test_site_with_a_lost_store_restarts_its_tours(text) -> None:
    fleet = lose_site(text, one_broker=False, back_after=1.0, keep_store=False)
    assert fleet.job("job").status == "done"
    assert fleet.job("job").history[0].visits == 4
    assert np.array_equal(fleet.model(), run(text).model)


@pytest.mark.parametrize("name", ["site-a", "dev-0", "dev-3"])
def test_store_lost_at_any_time_costs_no_visit(name) -> None:
    text = visit(fleet__devices=4)
    for moment in range(4, events_of(text), 17):
        fleet = SmallFleet(TWO_SITES)
        fleet.submit(text)
        after(fleet, moment)
        fleet.kill(name)
        fleet.stores[name] = MemoryStore()
        wait(fleet, 1.0)
        fleet.start(name)
        assert fleet.run("job", 2000).status == "done"
        assert [it.visits for it in fleet.job("job").history] == [4, 4]
        assert np.array_equal(fleet.model(), undisturbed(text).model), moment


def test_site_lost_while_its_result_is_fetched_is_dropped(monkeypatch) -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg(tours__on_lost_site="drop", **SITE))
    cloud = machine_of(fleet, CLOUD, Coordinator)
    fleet.world.run(lambda: bool(fleet.job("job").tours))
    tours = {tour.number for tour in fleet.job("job").tours if tour.site == "site-a"}
    monkeypatch.setattr(node_module, "INLINE", 0)
    fleet.world.run(lambda: bool(tours & cloud._tours._fetching.keys()))
    fleet.kill("site-a")
    assert fleet.run("job", 200).status == "done"
    assert fleet.job("job").history[0].tours < 4


def test_late_results_of_an_old_attempt_are_discarded() -> None:
    text = chain(rounds=2, tours__on_lost_visit="retry")
    slow = order_of(text)[1]
    fleet = SmallFleet(ONE_SITE)
    calls: list[int] = []

    def first_is_lost(work, outcome, blobs):
        if training(work):
            calls.append(1)
        return None if len(calls) == 1 and training(work) else outcome

    fleet.changes = {slow: first_is_lost}
    fleet.submit(text)
    state = fleet.run("job")
    assert [report.visits for report in state.history] == [4, 4]
    assert np.array_equal(fleet.model(), run(text, ONE_SITE).model)
    agent = machine_of(fleet, slow, Agent)
    wait(fleet, 60)
    assert agent.state.held == {}


def test_device_restarted_within_its_lease_resumes_the_attempt() -> None:
    text = chain()
    fleet = SmallFleet(ONE_SITE)
    fleet.submit(text)
    fleet.world.run(lambda: fleet.job("job").phase == "train" and bool(fleet.job("job").tours))
    second = fleet.job("job").tours[0].hops[1]
    fleet.world.run(lambda: (second, "job/1/4/1/1.2") in fleet.ledger.begun)
    before = dict(machine_of(fleet, second, Agent).state.held)
    fleet.kill(second)
    wait(fleet, 15)
    fleet.start(second)
    held = machine_of(fleet, second, Agent).state.held
    assert {key: it.order.id for key, it in held.items()} == {key: it.order.id for key, it in before.items()}
    state = fleet.run("job")
    assert state.history[0].failures == ()
    assert np.array_equal(fleet.model(), run(text, ONE_SITE).model)


def test_device_restarted_after_its_lease_loses_its_hop() -> None:
    text = chain()
    fleet = SmallFleet(ONE_SITE)
    fleet.submit(text)
    fleet.world.run(lambda: fleet.job("job").phase == "train" and bool(fleet.job("job").tours))
    second = fleet.job("job").tours[0].hops[1]
    fleet.world.run(lambda: machine_of(fleet, second, Agent).state.held != {})
    fleet.kill(second)
    wait(fleet, 60)
    fleet.start(second)
    state = fleet.run("job")
    assert state.history[0].failures == (f"{second}: lost, no sign of life for 20 s",)
    wait(fleet, 60)
    assert machine_of(fleet, second, Agent).state.held == {}
