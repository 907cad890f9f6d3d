"""Signed hops in whole jobs: honest fleets lose nothing, and false reports of a hostile edge server are refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from hierarchy.edge import gate, tours, visits
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Visit
from tests.fleet_sim.signed_fleet import SignedFleet
from tests.fleet_sim.small_fleet import fedavg, initial_model, job, run, visit

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.job_state import JobState
    from sojourn.protocol.wire import VisitReport

    Tamper = Callable[[list[VisitReport]], list[VisitReport]]

SITES = {"site-a": ("dev-0", "dev-1", "dev-2", "dev-3")}
ALL: dict[str, Any] = {"fleet__devices": 4}
CHAINS = visit(rounds=1, **ALL)
"""Two tours of two devices, one after another, after an estimation."""


def done(text: str, **how: Any) -> tuple[SignedFleet, JobState]:
    fleet = SignedFleet(SITES, **how)
    fleet.submit(text)
    return fleet, fleet.run("job")


def failures(state: JobState) -> str:
    """Return failures of finished rounds, and of the last attempts at an unfinished one."""
    return " | ".join([*(line for report in state.history for line in report.failures), *state.unestimated])


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tamper], None]:
    """Make edge servers alter their reports of training tours; they trust every device."""

    def set_up(tamper: Tamper) -> None:
        truth, kinds = tours.TourLeader._end, list[str]()

        def end(self: Any, key: str, *rest: Any) -> Any:
            kinds.append(self._site.state.tours[key].order.task.kind)
            return truth(self, key, *rest)

        def pack_altered(reports: list[VisitReport]) -> bytes:
            return pack_blob(tamper(list(reports)) if kinds[-1] == "train" else reports)

        monkeypatch.setattr(tours.TourLeader, "_end", end)
        monkeypatch.setattr(tours, "pack_blob", pack_altered)
        monkeypatch.setattr(visits, "unsigned", lambda *_: None)

    return set_up


@pytest.mark.parametrize(
    "text",
    [
        fedavg(**ALL),
        CHAINS,
        visit(rounds=1, encoding="float16", **ALL),
        visit(rounds=1, estimator__name="class-counts", estimator__epochs=None, **ALL),
        visit(rounds=1, gate__clip=False, **ALL),
        job(strategy="hierfavg", **ALL),
    ],
    ids=["alone", "chains", "compressed", "counts", "strict", "merged"],
)
def test_signatures_do_not_change_the_bits_of_an_honest_fleet(text: str) -> None:
    plain = run(text, SITES)
    fleet, state = done(text)
    assert state.status == plain.state.status == "done"
    assert failures(state) == failures(plain.state)
    assert np.array_equal(fleet.model(), plain.model)
    assert not np.array_equal(fleet.model(), 0 * plain.model)


def signed(report: VisitReport, **changes: Any) -> VisitReport:
    """Return the report with other signed contents."""
    return msgspec.structs.replace(report, signed=msgspec.structs.replace(report.signed, **changes))  # type: ignore[type-var]


def renamed(reports: list[VisitReport]) -> list[VisitReport]:
    names = {"dev-0": "dev-1", "dev-1": "dev-0", "dev-2": "dev-3", "dev-3": "dev-2"}
    return [msgspec.structs.replace(each, device=names[each.device]) for each in reports]


TAMPERS: dict[str, tuple[Tamper, str]] = {
    "unsigned": (
        lambda reports: [msgspec.structs.replace(each, signed=None) for each in reports],
        "is not signed",
    ),
    "samples": (
        lambda reports: [msgspec.structs.replace(each, samples=each.samples + 1) for each in reports],
        "samples, not",
    ),
    "more samples signed": (
        lambda reports: [signed(each, samples=each.samples + 1) for each in reports],
        "did not sign this report of its visit",
    ),
    "steps": (lambda reports: [signed(each, steps=7_777) for each in reports], "did not sign"),
    "returned": (lambda reports: [signed(each, returned={"model": b"x" * 32}) for each in reports], "did not sign"),
    "given": (lambda reports: [signed(each, given={"model": b"x" * 32}) for each in reports], "did not sign"),
    "signature": (lambda reports: [signed(each, signature=b"x" * 64) for each in reports], "did not sign"),
    "attempt": (lambda reports: [signed(each, attempt=(9, 1)) for each in reports], "for another attempt"),
    "kept": (lambda reports: [signed(each, kept=b"x" * 32) for each in reports], "was changed after its visit"),
}


@pytest.mark.parametrize("what", TAMPERS)
def test_unsigned_content_is_refused_by_name_and_loses_the_tour(what: str, hostile: Callable[[Tamper], None]) -> None:
    tamper, words = TAMPERS[what]
    hostile(tamper)
    fleet, state = done(fedavg(rounds=1, **ALL))
    assert failures(state).count(words) >= 1
    assert "dev-0" in failures(state)
    assert state.history == []
    assert np.array_equal(fleet.model(), initial_model())


def test_edge_server_cannot_invent_a_device(hostile: Callable[[Tamper], None]) -> None:
    """A site reports other devices than those that trained the models of its two tours."""
    hostile(renamed)
    _, state = done(CHAINS)
    assert state.history == []
    assert "did not sign this report of its visit" in failures(state)


def test_signature_of_an_earlier_round_is_rejected(hostile: Callable[[Tamper], None]) -> None:
    first: dict[str, VisitReport] = {}

    def replay(reports: list[VisitReport]) -> list[VisitReport]:
        return [first.setdefault(each.device, each) for each in reports]

    hostile(replay)
    _, state = done(fedavg(rounds=2, **ALL))
    assert [report.tours for report in state.history] == [4]
    assert failures(state).count("did not sign") + failures(state).count("for another attempt") >= 1


def test_signature_of_another_tour_or_hop_is_rejected(hostile: Callable[[Tamper], None]) -> None:
    def swapped(reports: list[VisitReport]) -> list[VisitReport]:
        one, two = reports
        return [msgspec.structs.replace(two, hop=0), msgspec.structs.replace(one, hop=1)]

    hostile(swapped)
    _, state = done(CHAINS)
    assert state.history == []
    assert "did not sign" in failures(state)


def test_statement_counts_only_once(hostile: Callable[[Tamper], None]) -> None:
    def doubled(reports: list[VisitReport]) -> list[VisitReport]:
        one, two = reports
        return [one, signed(two, attempt=one.signed.attempt)]  # type: ignore[union-attr]

    hostile(doubled)
    _, state = done(CHAINS)
    assert "is used twice" in failures(state)


def test_device_given_another_model_breaks_the_chain(
    hostile: Callable[[Tamper], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second device trains the tour's initial model, and its signature shows that."""
    monkeypatch.setattr(visits, "sent_vectors", lambda tour: {"model": tour.order.vectors["model"]})
    monkeypatch.setattr(gate, "sent_vectors", lambda tour: {"model": tour.order.vectors["model"]})
    hostile(lambda reports: reports)
    _, state = done(CHAINS)
    assert state.history == []
    assert "got another model than the output of dev-" in failures(state)


def test_first_device_must_receive_the_coordinator_model(
    hostile: Callable[[Tamper], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, a site sends the model of the first round again."""
    hostile(lambda reports: reports)
    truth, first = tours.TourLeader._begin, list[Any]()

    def begin(self: Any, message: Any, now: float) -> Any:
        first.append(message.vectors["model"])
        changed = {**message.vectors, "model": first[0]}
        return truth(self, msgspec.structs.replace(message, vectors=changed), now)

    monkeypatch.setattr(tours.TourLeader, "_begin", begin)
    _, state = done(fedavg(rounds=2, **ALL))
    assert [report.tours for report in state.history] == [4]
    assert "dev-0 got another model than the output of the coordinator" in failures(state)


def test_model_made_by_the_edge_server_is_rejected(
    hostile: Callable[[Tamper], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile(lambda reports: reports)
    truth = tours.TourLeader._results

    def results(self: Any, key: str) -> Any:
        found = truth(self, key)
        tour = self._site.state.tours[key]
        return {**found, "model": tour.order.vectors["model"]} if tour.order.task.kind == "train" else found

    monkeypatch.setattr(tours.TourLeader, "_results", results)
    _, state = done(CHAINS)
    assert state.history == []
    assert "the model received is not the output of dev-" in failures(state)


def test_model_changed_between_two_hops_is_rejected(
    hostile: Callable[[Tamper], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile(lambda reports: reports)
    truth = gate.check

    def check(work: Any, blobs: Any, views: Any = None) -> Any:
        passed = truth(work, blobs, views)
        if isinstance(passed, gate.Passed) and work.task.kind == "train":
            return msgspec.structs.replace(passed, wire_vectors={"model": work.checkpoint["model"]})
        return passed

    monkeypatch.setattr(gate, "check", check)
    _, state = done(CHAINS)
    assert state.history == []
    assert "was changed after its visit" in failures(state)


def test_visit_with_an_altered_task_has_no_valid_signature(
    hostile: Callable[[Tamper], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile(lambda reports: reports)
    truth = Visit

    def asked(*fields: Any) -> Any:
        made = truth(*fields)
        training = msgspec.structs.replace(made.task.training, epochs=3)
        return msgspec.structs.replace(made, task=msgspec.structs.replace(made.task, training=training))

    monkeypatch.setattr(visits, "Visit", asked)
    _, state = done(fedavg(rounds=1, **ALL))
    assert state.history == []
    assert "did not sign" in failures(state)


def test_estimates_are_signed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def pack_altered(reports: list[VisitReport]) -> bytes:
        turned = [msgspec.structs.replace(it, signature=tuple(reversed(it.signature or ())) or None) for it in reports]
        return pack_blob(turned)

    text = visit(rounds=1, estimator__name="class-counts", estimator__epochs=None, **ALL)
    honest = SignedFleet(SITES)
    honest.submit(text)
    assert len(honest.run("job").signatures) == 4
    monkeypatch.setattr(tours, "pack_blob", pack_altered)
    fleet = SignedFleet(SITES)
    fleet.submit(text)
    state = fleet.run("job", 500)
    assert (state.signatures, state.history) == ({}, [])
    assert sorted(state.silent) == ["dev-0", "dev-1", "dev-2", "dev-3"]


def test_wrong_signing_key_loses_the_hop_but_not_the_round() -> None:
    _, state = done(fedavg(rounds=1, **ALL), signers={"dev-1": "dev-0"})
    assert state.history[0].tours == 3
    why = r"dev-1: refused, by edge server \S+, because the signature does not match the result; check "
    assert re.search(why, failures(state))


def test_device_without_key_is_skipped_only_if_keys_are_required() -> None:
    fleet = SignedFleet(SITES, unsigned=("dev-3",))
    fleet.submit(fedavg(rounds=1, **ALL))
    state = fleet.run("job")
    assert (state.history[0].tours, failures(state)) == (4, "")
    strict = SignedFleet(SITES, unsigned=("dev-3",), policy="require")
    strict.submit(fedavg(rounds=1, fleet__devices=3))
    state = strict.run("job")
    assert (state.history[0].tours, state.history[0].visits, failures(state)) == (3, 3, "")


def test_edge_server_cannot_deny_that_a_device_has_a_key(hostile: Callable[[Tamper], None]) -> None:
    hostile(lambda reports: [msgspec.structs.replace(each, signed=None) for each in reports])
    off = SignedFleet(SITES, policy="off")
    off.submit(fedavg(rounds=1, **ALL))
    assert off.run("job").history[0].tours == 4
    _, state = done(fedavg(rounds=1, **ALL))
    assert state.history == []


def test_clipped_update_is_accepted_only_if_the_job_allows_it(
    hostile: Callable[[Tamper], None],
) -> None:
    """An edge server may report a shortened update only if the job allows it; the tour is judged by its length."""

    def claimed(reports: list[VisitReport]) -> list[VisitReport]:
        words = "its norm is over the usual: it was shortened to that"
        return [signed(msgspec.structs.replace(each, reason=words), handed=b"x" * 32) for each in reports]

    hostile(claimed)
    assert done(fedavg(rounds=1, gate__clip=True, **ALL))[1].history[0].tours == 4
    state = done(fedavg(rounds=1, gate__clip=False, **ALL))[1]
    assert state.history == []
    assert "was changed after its visit" in failures(state)
