"""Closing a round when a site, or a device that a site trusted, reports false data."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.job_state import JobState
from coordinator.machine.job_log import failure_lines_of
from coordinator.records import DevicesEstimated, RoundClosed, RoundFailed, TourPlan
from coordinator.rounds.closing import close_round
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.orders import Leg, peer_bounds, rises_of
from coordinator.rounds.results import CloseRound
from coordinator.rounds.tour_check import BY, FORGED, usual_rise
from sojourn.model import vectors
from sojourn.model.gate_rules import damaged
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Toured
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.protocol.visit_outcomes import is_flagged
from sojourn.protocol.wire import DATA_NOTE, Ref, TourId, VisitReport
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.sojourn.protocol.examples import kit_without_graphs

SPEC = ModelSpec((TensorSpec("w", (3,)),))
KIT = kit_without_graphs(SPEC, InputSpec((3,)))
DEVICES = ("a", "b", "c", "d")
NOT_FINITE = f"refused when its model came from site site, {BY} {damaged('1 of 3 numbers are not finite')}"
SAMPLES = {"a": 32, "b": 64, "c": 96, "d": 32}


class Home:
    """A round of FedAvg with four devices, which return what a test defines; each moved the model by its number."""

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        norms: tuple[float, ...] = (),
        devices: tuple[str, ...] = DEVICES,
    ) -> None:
        self.blobs = MemoryBlobs()
        lines = {"strategy": "fedavg", "data.classes": ["x", "y"], "data.input": [3], **(settings or {})}
        text = 'name = "job"\n' + "\n".join(f"{key} = {msgspec.json.encode(it).decode()}" for key, it in lines.items())
        start = self.save([0, 0, 0])
        self.tours = tuple(TourPlan(number, "site", (name,)) for number, name in enumerate(devices))
        self.state = JobState(
            "job", text, kit=self.keep(pack_blob(KIT)), vectors={"model": start}, wire_vectors={"model": start},
            initial=start, first_wire_vector=start, tours=self.tours, norms=norms,
        )  # fmt: skip
        for number, name in enumerate(devices):
            self.brings(number, [number + 1, 0, 0], self.report(name, float(number + 1)))

    def keep(self, data: bytes, encoding: Any = "raw") -> Ref:
        ref = ref_of(data, encoding)
        self.blobs.put(data, ref.digest)
        return ref

    def save(self, numbers: Any) -> Ref:
        return vectors.save(self.blobs, np.array(numbers, np.float32), "float32", SPEC)

    def report(self, name: str, norm: float, samples: int | None = None, **changes: Any) -> VisitReport:
        report = VisitReport(
            name, 0, "done", "", SAMPLES.get(name, 32) if samples is None else samples, norm, {}, None, 1.0
        )
        return msgspec.structs.replace(report, **changes)

    def brings(self, number: int, model: Any, *reports: VisitReport, samples: int | None = None) -> None:
        ref = model if isinstance(model, Ref) else self.save(model)
        seen = sum(report.samples for report in reports) if samples is None else samples
        toured = Toured(TourId("job", 1, number, 1), {"model": ref}, seen, self.keep(pack_blob(list(reports))), 0)
        self.state.arrived[number] = toured

    def close(self) -> RoundClosed:
        closed = close_round(CloseRound(self.state, 1.0, 0), self.blobs, Evaluator(self.blobs))
        assert isinstance(closed, RoundClosed)
        return closed

    def fail(self) -> RoundFailed:
        failed = close_round(CloseRound(self.state, 1.0, 0), self.blobs, Evaluator(self.blobs))
        assert isinstance(failed, RoundFailed)
        return failed

    def model(self, closed: RoundClosed) -> list[float]:
        numbers: list[float] = vectors.load(self.blobs, closed.vectors["model"], SPEC).tolist()
        return numbers


def mean(**weights: float) -> list[float]:
    moved = sum(weight * (DEVICES.index(name) + 1) for name, weight in weights.items())
    return [float(np.float32(moved / sum(weights.values()))), 0, 0]


def test_honest_tours_merge_by_exact_samples() -> None:
    home = Home()
    closed = home.close()
    assert home.model(closed) == mean(**SAMPLES)
    assert (closed.report.failures, closed.report.tours) == ((), 4)
    steps = {"a": 1, "b": 2, "c": 3, "d": 1}
    assert closed.norms == tuple(sorted((DEVICES.index(name) + 1) / np.sqrt(count) for name, count in steps.items()))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([np.nan, 0, np.inf], "2 of 3 numbers are not finite"),
        ([500, 0, 0], "the update's norm, 500, is over the"),
    ],
)
def test_invalid_model_is_left_out_and_named(numbers, words) -> None:
    home = Home()
    home.brings(1, numbers, home.report("b", 2.0))
    closed = home.close()
    assert home.model(closed) == mean(a=32, c=96, d=32)
    assert closed.report.failures[0].startswith(f"b: refused when its model came from site site, {BY} {words}")
    assert closed.report.tours == 3


def test_disabled_gate_accepts_large_but_not_non_finite_update() -> None:
    home = Home({"gate.on": False})
    home.brings(1, [500, 0, 0], home.report("b", 500.0))
    home.brings(2, [np.nan, 0, 0], home.report("c", 3.0))
    closed = home.close()
    assert home.model(closed) == [pytest.approx((32 * 1 + 64 * 500 + 32 * 4) / 128), 0, 0]
    assert closed.report.failures == (f"c: {NOT_FINITE}",)


def test_vector_of_wrong_length_does_not_end_the_job() -> None:
    home = Home()
    home.brings(3, home.keep(bytes(8), "float32"), home.report("d", 1.0))
    closed = home.close()
    assert home.model(closed) == mean(a=32, b=64, c=96)
    assert "8 bytes are not a float32 vector of 3 numbers" in closed.report.failures[0]


def test_model_without_a_reported_visit_is_ignored() -> None:
    home = Home()
    home.brings(0, [9, 0, 0], home.report("a", 1.0, status="lost", samples=0), samples=1000)
    home.brings(1, [9, 0, 0], home.report("a", 1.0), samples=1000)  # not one of that tour's devices
    closed = home.close()
    assert home.model(closed) == mean(c=96, d=32)
    why = f"is refused, {BY} it has a model, but its site reports no visit that trained it; {FORGED}"
    assert {f"site site: its tour of a {why}", f"site site: its tour of b {why}"} < set(closed.report.failures)


def test_tour_weight_uses_reports_and_each_hop_once() -> None:
    home = Home()
    home.brings(0, [1, 0, 0], home.report("a", 1.0), home.report("a", 1.0), samples=2**40)
    assert home.model(home.close()) == mean(**SAMPLES)


def test_device_weight_is_capped_by_share_and_samples() -> None:
    home = Home()
    home.brings(1, [2, 0, 0], home.report("b", 2.0, 2**40))
    closed = home.close()
    assert home.model(closed) == mean(a=32, b=160, c=96, d=32)
    assert closed.samples["b"] == 1_000_000
    free = Home({"gate.most_share": 1.0, "gate.most_samples": 2**53 - 1})
    free.brings(1, [2, 0, 0], free.report("b", 2.0, 2**40))
    assert free.model(free.close()) == [2, 0, 0]


def test_non_finite_merge_keeps_previous_model() -> None:
    home = Home({"strategy": "fedavgm", "aggregator.lr": 1e9, "gate.on": False})
    for number, name in enumerate(DEVICES):
        home.brings(number, [3e38, 0, 0], home.report(name, 1.0))
    failed, before = home.fail(), home.state.vectors
    assert failed.reason == "the merged model is not usable: 1 of 3 numbers of 'model' are not finite"
    home.state.apply(failed)
    assert (home.state.vectors, home.state.round, home.state.history) == (before, 1, [])


def declined(home: Home, *names: str) -> None:
    for name in names:
        home.brings(DEVICES.index(name), [0, 0, 0], home.report(name, 0.0, 0, status="declined", reason="too hot"))
        arrived = home.state.arrived[DEVICES.index(name)]
        home.state.arrived[DEVICES.index(name)] = msgspec.structs.replace(arrived, vectors={})


def test_round_without_training_devices_has_no_result() -> None:
    home = Home()
    declined(home, *DEVICES)
    failed = home.fail()
    assert failed.reason == "no device could train: 4 devices (a, b, c, d): declined, too hot"
    assert (failed.failures, failed.failed, failed.visits) == (("4 devices (a, b, c, d): declined, too hot",), 4, {})


def test_round_with_one_training_device_has_a_result() -> None:
    home = Home()
    declined(home, "a", "b", "c")
    assert home.close().report.visits == 1


def test_round_with_all_sites_lost_has_no_result() -> None:
    home = Home()
    home.state.arrived.clear()
    home.state.given_up = dict.fromkeys(range(4), "silent for 30 s")
    reason = "no device could train: 4 devices (a, b, c, d): not visited, site site: silent for 30 s"
    assert home.fail().reason == reason


def test_round_with_all_tours_refused_has_no_result() -> None:
    home = Home()
    for number, name in enumerate(DEVICES):
        home.brings(number, [np.nan, 0, 0], home.report(name, 1.0))
    failed = home.fail()
    assert failed.reason.startswith("every result was refused: 4 devices (a, b, c, d): refused when its model came")
    assert failed.visits == dict.fromkeys(DEVICES, 1)


def test_visit_without_a_returned_model_is_not_a_result() -> None:
    home = Home()
    for number in range(4):
        home.state.arrived[number] = msgspec.structs.replace(home.state.arrived[number], vectors={})
    assert home.fail().visits == dict.fromkeys(DEVICES, 1)


@pytest.mark.parametrize("strategy", ["dense", "fedov", "ma-echo", "scaffold", "fedelmy-few-shot"])
def test_one_round_and_finisher_strategies_need_a_result(strategy: str) -> None:
    home = Home({"strategy": strategy, "data.test": "digits"})
    declined(home, *DEVICES)
    assert home.fail().reason.startswith("no device could train: ")


def test_estimation_without_any_estimated_device_fails() -> None:
    home = Home({"strategy": "clusamp", "data.test": "digits"})
    home.state = msgspec.structs.replace(home.state, phase="estimate")
    declined(home, *DEVICES)
    failed = home.fail()
    assert failed.reason == "no device could be estimated: 4 devices (a, b, c, d): declined, too hot"
    assert failed.failures == ("4 devices (a, b, c, d): not estimated: declined, too hot",)
    assert failed.silent == DEVICES
    known = msgspec.structs.replace(home.state, samples={"e": 8})
    found = close_round(CloseRound(known, 1.0, 0), home.blobs, Evaluator(home.blobs))
    assert isinstance(found, DevicesEstimated)


def test_shortened_update_is_reported() -> None:
    home = Home()
    home.brings(0, [1, 0, 0], home.report("a", 1.0, reason="it was shortened"))
    assert home.close().report.failures == ("a: it was shortened",)


def test_metrics_of_refused_results_update_usual_bounds() -> None:
    home = Home(norms=(1e-3,))
    for number, name in enumerate(DEVICES):
        metrics = {"steps": 4.0, "rise": number + 2.0}
        home.brings(number, [0, 0, 0], home.report(name, 8.0, 0, status="refused", metrics=metrics))
        home.state.arrived[number] = msgspec.structs.replace(home.state.arrived[number], vectors={})
    failed = home.fail()
    assert (failed.norms, failed.rises) == ((4.0,) * 4, (3.5, math.inf))
    home.state.apply(failed)
    assert (home.state.norms, home.state.rises) == ((4.0,) * 4, (3.5, math.inf))
    assert rises_of(home.state) == (3.5, math.inf)


def test_similar_devices_give_tight_bounds() -> None:
    home = Home()
    home.state.rises = usual_rise([1.0 + 0.001 * number for number in range(8)]) or None
    bounds = peer_bounds(home.state, None, rises_of(home.state))
    assert [bounds.usual_rise, bounds.most_rise] == pytest.approx([1.0035, 1.0035 + 0.2])
    few = peer_bounds(home.state, None, usual_rise([1.0] * 7) or (0, 0))
    assert few.most_rise is None


def test_single_device_tour_is_judged_with_all_after_return() -> None:
    home = Home()
    assert all(Leg(home.state).judges_together(tour) for tour in home.state.tours)
    assert Leg(home.state).bounds(home.state.tours[0]).usual_rise >= 1e6
    together = TourPlan(9, "site", ("a", "b"))
    home.state.tours = (*home.state.tours[:2], together)
    assert not any(Leg(home.state).judges_together(tour) for tour in home.state.tours)
    assert Leg(home.state).bounds(together).usual_rise == 1.0


def test_estimation_records_norms_and_ignores_sent_signature() -> None:
    home = Home({"strategy": "clusamp", "data.test": "digits"})
    home.state = msgspec.structs.replace(home.state, phase="estimate")
    home.tours = home.state.tours = tuple(
        msgspec.structs.replace(tour, start={"model": "initial"}) for tour in home.tours
    )
    home.brings(0, [1, 0, 0], home.report("a", 1.0, signature=(9.0, 9.0, 9.0)))
    home.brings(3, [np.inf, 0, 0], home.report("d", 1.0))
    found = close_round(CloseRound(home.state, 1.0, 0), home.blobs, Evaluator(home.blobs))
    assert isinstance(found, DevicesEstimated)
    kept = {name: np.frombuffer(home.blobs.read(ref.digest), "<f4").tolist() for name, ref in found.weights.items()}
    assert kept == {"a": [1, 0, 0], "b": [2, 0, 0], "c": [3, 0, 0]}
    assert found.silent == ("d",)
    assert found.failures == (f"d: not estimated: {NOT_FINITE}",)
    home.state.apply(found)
    assert home.state.norms == found.norms != ()


def tour_of_two(settings: dict[str, Any] | None = None) -> Home:
    """A tour of a and b in addition to those of c and d."""
    home = Home(settings)
    together = TourPlan(0, "site", ("a", "b"), start=home.tours[0].start)
    home.tours = home.state.tours = (together, *home.tours[2:])
    del home.state.arrived[1]
    return home


def test_every_visit_of_a_refused_tour_counts_as_lost() -> None:
    home = tour_of_two()
    home.brings(0, [np.nan, 0, 0], home.report("a", 1.0), msgspec.structs.replace(home.report("b", 1.0), hop=1))
    closed = home.close()
    assert (closed.report.visits, closed.report.lost, closed.report.flagged) == (2, 2, 0)
    assert closed.report.failures[0].startswith(f"site site: its tour of a, b is refused, {BY} 1 of 3 numbers")
    assert [(it.device, it.status) for it in closed.visited] == [
        ("a", "refused"), ("b", "refused"), ("c", "done"), ("d", "done"),
    ]  # fmt: skip
    assert all((it.reason or "").startswith(BY) for it in closed.visited[:2])
    logged = [report.text for report in failure_lines_of(closed, ())]
    assert logged == [f"job job round {closed.report.round}: {line}" for line in closed.report.failures]


def test_gate_report_refuses_nothing_and_names_it() -> None:
    home, off = Home({"gate": "report"}), Home({"gate": "off"})
    for it in (home, off):
        it.brings(1, [500, 0, 0], it.report("b", 500.0, 2**40))
    closed, same = home.close(), off.close()
    assert home.model(closed) == off.model(same)
    assert (closed.report.visits, closed.report.lost, closed.report.flagged) == (4, 0, 1)
    (line,) = closed.report.failures
    assert line.startswith(f"b: would have been refused {BY} the update's norm, 500, is over the ")
    assert 'set gate = "report"' in line
    assert [it.device for it in closed.visited if is_flagged(it.status, it.reason)] == ["b"]


def test_gate_report_refuses_non_finite_model() -> None:
    home = Home({"gate": "report"})
    home.brings(2, [np.nan, 0, 0], home.report("c", 3.0))
    closed = home.close()
    assert home.model(closed) == mean(a=32, b=64, d=32)
    assert closed.report.failures == (f"c: {NOT_FINITE}",)
    assert (closed.report.lost, closed.report.flagged) == (1, 0)


def test_gate_report_flags_every_visit_of_a_tour() -> None:
    home = tour_of_two({"gate": "report"})
    home.brings(0, [500, 0, 0], home.report("a", 1.0), msgspec.structs.replace(home.report("b", 1.0), hop=1))
    closed = home.close()
    assert (closed.report.visits, closed.report.lost, closed.report.flagged) == (4, 0, 2)
    assert closed.report.failures[0].startswith("site site: its tour of a, b would have been refused by the coord")


def test_device_note_is_reported_once_for_each_device() -> None:
    home, odd = Home(devices=("pi-1", "pi-10", "pi-2", "pi-3")), f"{DATA_NOTE}all labels are cat"
    failures = []
    for noting in (1,), (0, 1), (0, 1):
        for number, tour in enumerate(home.tours):
            reason = odd if number in noting else ""
            home.brings(number, [number + 1, 0, 0], home.report(tour.hops[0], float(number + 1), reason=reason))
        closed = home.close()
        failures.append(closed.report.failures)
        home.state.apply(closed)
        home.state.tours = home.tours
    assert failures == [(f"pi-10: {odd}",), (f"pi-1: {odd}",), ()]
    assert home.state.device_notes == {"pi-10": odd, "pi-1": odd}


def test_device_that_reports_another_note_is_reported_again() -> None:
    home = Home()
    home.state.device_notes = {"a": f"{DATA_NOTE}no cats"}
    home.brings(0, [1, 0, 0], home.report("a", 1.0, reason=f"{DATA_NOTE}no dogs"))
    assert home.close().report.failures == (f"a: {DATA_NOTE}no dogs",)
