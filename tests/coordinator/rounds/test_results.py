"""A site's reports count only as far as they belong to their tour."""

from __future__ import annotations

from typing import Any

from coordinator.job_state import JobState
from coordinator.records import TourPlan
from coordinator.rounds.results import REPORT_BYTES, reports_of
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Toured
from sojourn.protocol.wire import TourId, VisitReport
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import text

TOUR = TourPlan(0, "s1", ("a", "b"), ("c",))


def report(device: str, hop: int, status: Any = "done", samples: int = 5) -> VisitReport:
    return VisitReport(device, hop, status, "", samples, 1.0, {}, None, 1.0)


def read(data: bytes) -> list[VisitReport]:
    blobs = MemoryBlobs()
    blobs.put(data)
    arrived = {0: Toured(TourId("job", 1, 0, 1), {}, 5, ref_of(data), 0)}
    return reports_of(JobState("job", text(), tours=(TOUR,), arrived=arrived), TOUR, blobs)


def test_reports_of_tour_devices_and_hops_count() -> None:
    good = [report("a", 0, "lost", 0), report("c", 0), report("b", 1)]
    assert read(pack_blob(good)) == good


def test_foreign_reports_are_ignored() -> None:
    good = report("a", 0)
    others = [report("elsewhere", 1), report("b", 2), report("a", 2_500_000), report("a", 0, samples=1 << 40)]
    assert read(pack_blob([good, *others])) == [good]


def test_invalid_or_oversized_blob_is_one_refused_visit() -> None:
    for data in (b"\x91" * 5000, b"\xc1", pack_blob([1]), bytes(REPORT_BYTES + 1)):
        (found,) = read(data)
        assert (found.device, found.status, found.samples) == ("a", "refused", 0)
