"""Devices' signing keys and the check of a tour's hops, so that an edge server cannot forge devices or results."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from coordinator.job_state import JobState
from coordinator.records import TourPlan
from coordinator.rounds.orders import peer_bounds, rises_of, task_of, waves_of
from sojourn.errors import ConfigError
from sojourn.protocol.limits import Name, PublicKey
from sojourn.protocol.visit_outcomes import SHORTENED
from sojourn.protocol.wire import SignedHop, Task, VisitId, VisitReport
from sojourn.settings import read_file

log = logging.getLogger(__name__)
SigningPolicy = Literal["enrolled", "require", "off"]
"""Which results must be signed: of devices that have joined with their own key, of all devices, or none."""


class _KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[Name, PublicKey] = {}


class NodeKeys:
    """Public keys of devices by name; a file with keys is read again whenever it changes."""

    def __init__(
        self, path: Path | None = None, policy: SigningPolicy = "enrolled", keys: Mapping[str, bytes] | None = None
    ) -> None:
        self._path, self.policy = path, policy
        self._keys: dict[str, bytes] = dict(keys or {})
        self._read: int | None = None
        self._reported: dict[str, set[str]] = {}
        """By site, the devices without a key that were logged."""

    def now(self) -> dict[str, bytes]:
        """Return all keys; none if no device has to sign."""
        if self.policy == "off":
            return {}
        stamp = self._stamp()
        if self._path is not None and stamp != self._read:
            self._read = stamp
            try:
                self._keys = dict(read_file(self._path, _KeysFile).keys) if stamp else {}
            except ConfigError as error:  # keep the previous keys rather than none
                log.warning("%s", error)
        return self._keys

    def of(self, devices: Iterable[str]) -> dict[str, bytes]:
        """Return the known keys of these devices."""
        known = self.now()
        return {device: known[device] for device in devices if device in known} if known else {}

    def newly_without(self, site: str, devices: Iterable[str]) -> list[str]:
        """Return devices without a key that were not reported before; none if devices do not sign."""
        known = self.now()
        if self.policy == "off" or not (known or self._path or self.policy == "require"):
            return []
        reported = self._reported.setdefault(site, set())
        reported.difference_update(known)
        new = [device for device in devices if device not in known and device not in reported]
        reported.update(new)
        return new

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0


# Verifies the hops of a tour by its devices' signatures: an edge server cannot forge devices or results.
#
# Each counted visit must be signed by its device for exactly this visit, with its input and its output. In sequential
# visits, the first device's input is what the coordinator sent, and each further input is the previous device's output.
# In float32 the last output is exactly the model received, unless the gate shortened the update and reports it. If a
# job compresses, or merges at the edge server, the steps between two hops are not signed;
# `coordinator.rounds.tour_check` limits how far they can lead and where to.


class HopCheck:
    """Checks the visits that a site reports as done."""

    def __init__(self, keys: NodeKeys | None = None) -> None:
        self._keys = keys

    def refusal(self, state: JobState, tour: TourPlan, done: Sequence[VisitReport]) -> str | None:
        """Return why a site's report of a tour cannot be true; None if all signatures are valid, or none are needed."""
        if self._keys is None or self._keys.policy == "off" or not done:
            return None
        keys = self._keys.of({report.device for report in done})
        if not keys and self._keys.policy != "require":
            return None
        for report in done:
            if report.device not in keys and self._keys.policy == "require":
                return f"{report.device} has no signing key, and every result must be signed"
        signed = [(report, report.signed) for report in done if report.device in keys]
        if missing := next((report for report, hop in signed if not hop), None):
            return f"the result of {missing.device} is not signed"
        hops = {report.hop: hop for report, hop in signed if hop}
        return _forged(state, tour, done, hops, keys) or _broken(state, tour, sorted(done, key=lambda it: it.hop), hops)


def _forged(
    state: JobState, tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop], keys: dict[str, bytes]
) -> str | None:
    """Return why the devices cannot have reported what their site claims, or None."""
    # Import cryptography only if a device signs.
    from sojourn.protocol.signing import VisitStatement, found_digest, is_signed, pairs, task_digest  # noqa: PLC0415

    task = task_of(state, tour)
    task_hash, kit = task_digest(task), state.kit.digest if state.kit else b""
    attempts = set()
    for report in done:
        hop = hops.get(report.hop)
        if hop is None:
            continue
        if hop.attempt[0] != tour.attempt:
            return f"the signature of {report.device} is for another attempt of the tour"
        if hop.attempt in attempts:
            return f"the signature of {report.device} is used twice"
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
            return f"{report.device} did not sign this report of its visit"
        if report.samples > hop.samples:
            return f"{report.device} signed {hop.samples} samples, not {report.samples}"
    return None


def _broken(state: JobState, tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop]) -> str | None:
    """Return where a visit's input does not match the previous output, or None."""
    # The start of an earlier leg is no longer stored: it was checked when that leg ended.
    here = tour.leg == state.leg
    start = {name: state.travelling_vector(held).digest for name, held in tour.start.items()} if here else None
    if waves_of(state):
        return _broken_waves(tour, done, hops, start)
    task, before = task_of(state, tour), "the coordinator"
    expected = start["model"] if start else None
    last: bytes | None = None
    for report in done:
        hop, device = hops.get(report.hop), report.device
        if hop is None:  # the output of a device without a key is unknown
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
        return f"the model received is not the output of {before}"
    return None


def _wrongly_given(
    hop: SignedHop, device: str, start: dict[str, bytes] | None, expected: bytes | None, before: str
) -> str | None:
    """Return whether a device got another model than the previous output, or other vectors than the tour has."""
    if expected is not None and hop.given.get("model") != expected:
        return f"{device} got another model than the output of {before}"
    if start and any(hop.given.get(name) != digest for name, digest in start.items() if name != "model"):
        return f"{device} got other vectors than the coordinator sent"
    return None


def _may_shorten(state: JobState, task: Task) -> bool:
    """Return whether the job allows edge servers to shorten updates (`hierarchy.edge.gate`)."""
    clips = peer_bounds(state, None, rises_of(state)).clip and state.settings.gate.on and state.exemplars is not None
    objective = task.objective
    return clips and not objective.returns and not objective.reports and not objective.keeps


def _changed(hop: SignedHop, report: VisitReport, task: Task, *, may_shorten: bool) -> str | None:
    """Return why a device's output cannot have become the model that follows it, or None."""
    if task.encoding != "float32" or hop.returned.get("model") == hop.kept == hop.handed:
        return None
    if may_shorten and SHORTENED in report.reason:
        return None
    return f"the model of {report.device} was changed after its visit"


def _broken_waves(
    tour: TourPlan, done: Sequence[VisitReport], hops: dict[int, SignedHop], start: dict[str, bytes] | None
) -> str | None:
    """Return why not all devices of a wave got the same model, in the first wave the coordinator's, or None."""
    size, given = len(tour.hops), {0: start["model"]} if start else {}
    for report in done:
        hop = hops.get(report.hop)
        if hop is None:
            continue
        model = given.setdefault(report.hop // size, hop.given.get("model", b""))
        if hop.given.get("model") != model:
            return f"{report.device} got another model than the others of its wave"
    return None
