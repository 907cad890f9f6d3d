"""Verifies the hops of a tour by what its devices signed: an edge server can invent neither devices nor results.

Each kept visit must be signed by its device for exactly this visit, with what it was given and what it returned. One
visit after another, the first was given what the coordinator sent out, and each other what was handed on of the one
before. In float32 that is the very model that came back, unless the gate has shortened the update, and says so. Where a
job compresses, or merges at the edge server, what is between two hops is the edge server's word, and is judged by how
far it leads and where to (`coordinator.rounds.tour_check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.rounds.orders import bounds_beside, rises_of, task_of, waves_of
from sojourn.protocol.wire import VisitId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.records import TourPlan
    from coordinator.rounds.node_keys import NodeKeys
    from coordinator.state import JobState
    from sojourn.protocol.signed_hop import SignedHop
    from sojourn.protocol.wire import Task, VisitReport

SHORTENED = "it was shortened to that"
"""What a report says of an update that the gate has shortened."""


class HopCheck:
    """Looks at the visits that a site says were done."""

    def __init__(self, keys: NodeKeys | None = None) -> None:
        self._keys = keys

    def refusal(self, state: JobState, tour: TourPlan, done: Sequence[VisitReport]) -> str | None:
        """Why a tour cannot have been what its site says; None where all is signed as it should be, or nobody signs."""
        if self._keys is None or self._keys.policy == "off" or not done:
            return None
        keys = self._keys.of({report.device for report in done})
        if not keys and self._keys.policy != "require":
            return None
        for report in done:
            if report.device not in keys and self._keys.policy == "require":
                return f"{report.device} has no key of its own, and every result must be signed"
        signed = [(report, report.signed) for report in done if report.device in keys]
        if missing := next((report for report, hop in signed if not hop), None):
            return f"the result of {missing.device} is not signed"
        hops = {report.hop: hop for report, hop in signed if hop}
        return _forged(state, tour, done, hops, keys) or _broken(state, tour, sorted(done, key=lambda it: it.hop), hops)


def _forged(
    state: JobState, tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop], keys: dict[str, bytes]
) -> str | None:
    """Why the devices cannot have said what their site says they did."""
    # Cryptography is loaded only where somebody signs.
    from sojourn.protocol.statements import VisitStatement, found_digest, is_signed, pairs, task_digest  # noqa: PLC0415

    task = task_of(state, tour)
    task_hash, kit = task_digest(task), state.kit.digest if state.kit else b""
    attempts = set()
    for report in done:
        hop = hops.get(report.hop)
        if hop is None:
            continue
        if hop.attempt[0] != tour.attempt:
            return f"what {report.device} has signed is of another attempt of the tour"
        if hop.attempt in attempts:
            return f"what {report.device} has signed counts once, and is there twice"
        attempts.add(hop.attempt)
        statement = VisitStatement(
            report.device,
            VisitId(state.name, state.round, tour.number, report.hop, hop.attempt),
            kit,
            task_hash,
            pairs(hop.given),
            pairs(hop.returned),
            hop.samples,
            hop.steps,
            found_digest(report.signature) if task.kind == "estimate" else b"",
        )
        if not is_signed(statement, keys[report.device], hop.signature):
            return f"{report.device} has not signed what is said of its visit"
        if report.samples > hop.samples:
            return f"{report.device} has signed {hop.samples} samples, not {report.samples}"
    return None


def _broken(state: JobState, tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop]) -> str | None:
    """Where the visits do not follow one from another."""
    # Of an earlier leg the start is gone: it was looked at when its leg passed.
    here = tour.leg == state.leg
    start = {name: state.travelling_vector(held).digest for name, held in tour.start.items()} if here else None
    if waves_of(state):
        return _broken_waves(tour, done, hops, start)
    task, before = task_of(state, tour), "the coordinator"
    expected = start["model"] if start else None
    last: bytes | None = None
    for report in done:
        hop, device = hops.get(report.hop), report.device
        if hop is None:  # a device without a key: what it made is not known
            expected, last, before = None, None, device
            continue
        if fault := _wrongly_given(hop, device, start, expected, before):
            return fault
        if task.kind == "train":
            if fault := _changed(hop, report, task, may_shorten=_may_shorten(state, task)):
                return fault
            expected, last, before = hop.handed, hop.kept, device
    came = state.arrived[tour.number].vectors.get("model") if tour.number in state.arrived else None
    if came and last and came.encoding == "float32" and not came.delta and came.digest != last:
        return f"the model that came home is not the one that {before} left"
    return None


def _wrongly_given(
    hop: SignedHop, device: str, start: dict[str, bytes] | None, expected: bytes | None, before: str
) -> str | None:
    """Whether a device was given another model than the one before it left, or other vectors than the tour has."""
    if expected is not None and hop.given.get("model") != expected:
        return f"{device} was given another model than {before} left"
    if start and any(hop.given.get(name) != digest for name, digest in start.items() if name != "model"):
        return f"{device} was given other vectors than the coordinator sent"
    return None


def _may_shorten(state: JobState, task: Task) -> bool:
    """Whether the job lets edge servers shorten updates (`hierarchy.edge.gate`)."""
    clips = bounds_beside(state, None, rises_of(state)).clip and state.settings.gate.on and state.exemplars is not None
    objective = task.objective
    return clips and not objective.returns and not objective.tells and not objective.keeps


def _changed(hop: SignedHop, report: VisitReport, task: Task, *, may_shorten: bool) -> str | None:
    """Whether what a device returned was changed where nothing allows that."""
    if task.encoding != "float32" or hop.returned.get("model") == hop.kept == hop.handed:
        return None
    if may_shorten and SHORTENED in report.reason:
        return None
    return f"the model of {report.device} was changed after it came back"


def _broken_waves(
    tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop], start: dict[str, bytes] | None
) -> str | None:
    """All devices of a wave are given the same model, and those of the first one what the coordinator sent."""
    size, given = len(tour.hops), {0: start["model"]} if start else {}
    for report in done:
        hop = hops.get(report.hop)
        if hop is None:
            continue
        model = given.setdefault(report.hop // size, hop.given.get("model", b""))
        if hop.given.get("model") != model:
            return f"{report.device} was given another model than the others of its wave"
    return None
