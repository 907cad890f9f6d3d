"""A coordinator's Prometheus metrics: right numbers, and few of them whatever the fleet's size and its words."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.fleet_records import VisitOutcome
from coordinator.machine.metrics import DAY, MAX_LINES, MAX_RUNS, MAX_SITES, OTHER_SITES
from coordinator.records import DevicesEstimated, JobEnded, JobSubmitted, Record, RoundClosed
from sojourn.metrics.catalogue import (
    DEVICES,
    JOBS,
    RELEASE_DEVICES,
    ROLLOUT,
    ROUND_SECONDS,
    ROUNDS,
    RUN_ACCURACY,
    RUN_LOSS,
    RUN_METRIC,
    RUN_PROGRESS,
    RUN_ROUNDS,
    RUN_STATUS,
    RUN_TOURS,
    SITE_UP,
    VISIT_SECONDS,
    VISITS,
    Reading,
)
from sojourn.node.machine import Present
from sojourn.protocol.limits import decoded
from sojourn.protocol.messages import TourProgress
from sojourn.protocol.wire import RoundReport, TourId
from tests.coordinator.machine.cloud_bench import BOOT, BORN, DEAD, MODEL, Bench, site, text
from tests.coordinator.machine.fleet_bench import WALL, FleetBench
from tests.coordinator.machine.rollout_bench import RolloutBench


class MetricsReader:
    """A coordinator's metrics, read when a test needs them."""

    def __init__(self, bench: Bench) -> None:
        self.fleet, self.runs, self.rollouts = bench.cloud.metrics()

    def values(self, now: float = WALL) -> dict[Any, dict[Any, Any]]:
        reading = Reading()
        for metrics in (self.fleet, self.runs, self.rollouts):
            metrics.read(reading, now)
        return reading.values

    def devices(self, now: float = WALL) -> dict[tuple[str, ...], float]:
        return {labels: int(count) for labels, count in self.values(now)[DEVICES].items() if count}


def outcome(status: Any, reason: str = "", seconds: float = 0.0) -> VisitOutcome:
    return VisitOutcome(0, 0, "s", "d", status, reason, 0, seconds)


def test_devices_are_counted_by_site_and_state_without_names() -> None:
    bench = FleetBench()
    metrics = MetricsReader(bench)
    bench.join("s1", ("a", "b", "c"))
    bench.join("s2", ("d",))
    assert metrics.devices() == {("s1", "idle"): 3, ("s2", "idle"): 1}
    bench.join("s1", ("a", "b"), revision=2, now=10.0)
    assert metrics.devices(WALL + 10) == {("s1", "idle"): 2, ("s1", "offline"): 1, ("s2", "idle"): 1}
    assert metrics.devices(WALL + 20 + DAY)[("s1", "absent")] == 1
    assert metrics.values()[SITE_UP] == {("s1",): 1, ("s2",): 1}
    bench.handle(Present(site("s2"), BOOT, DEAD), 20.0)
    assert metrics.values(WALL + 20)[SITE_UP] == {("s1",): 1, ("s2",): 0}
    assert metrics.devices(WALL + 20)[("s2", "offline")] == 1


def test_offline_site_is_exported_for_one_day() -> None:
    bench = FleetBench()
    bench.join("s1", ("a",))
    bench.handle(Present(site("s1"), BOOT, DEAD), 5.0)
    bench.cloud = bench.replayed()
    metrics = MetricsReader(bench)
    assert metrics.values(WALL + 60)[SITE_UP] == {("s1",): 0}
    assert SITE_UP not in metrics.values(WALL + 10 + DAY)


def test_silent_site_counts_as_offline_after_restart() -> None:
    bench = FleetBench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    bench.cloud = bench.replayed()
    metrics = MetricsReader(bench)
    bench.join("s1", ("a",), now=7 * DAY)
    now = WALL + 7 * DAY
    assert metrics.values(now)[SITE_UP] == {("s1",): 1, ("s2",): 0}
    assert metrics.devices(now) == {("s1", "idle"): 1, ("s2", "offline"): 1}


def test_device_in_a_visit_counts_as_visiting() -> None:
    bench = Bench()
    bench.running()
    metrics = MetricsReader(bench)
    assert metrics.devices() == {("s1", "idle"): 1, ("s2", "idle"): 1}
    first = bench.cloud.state.jobs["job"].tours[0]
    bench.receive(site(first.site), TourProgress(TourId("job", 1, first.number, 1), 0, 1, first.hops[0], 3, 10, 0, 0))
    other = "s2" if first.site == "s1" else "s1"
    assert metrics.devices() == {(first.site, "visiting"): 1, (other, "idle"): 1}


def test_large_fleet_exports_few_series() -> None:
    bench = FleetBench()
    metrics = MetricsReader(bench)
    bench.join("s0", tuple(f"dev-{number:04}" for number in range(5000)))
    alone = metrics.values()
    assert alone[DEVICES][("s0", "idle")] == 5000
    assert sum(len(series) for series in alone.values()) < 50
    for number in range(1, MAX_SITES + 50):
        bench.cloud.handle(Present(site(f"edge-{number}"), BOOT, BORN), 0.0)
    values = metrics.values()
    assert len(values[SITE_UP]) == MAX_SITES + 1
    assert values[SITE_UP][(OTHER_SITES,)] == 1
    assert values[DEVICES][("s0", "idle")] == 5000
    assert sum(len(series) for series in values.values()) < 6 * (MAX_SITES + 1)
    bench.cloud.handle(Present(site("edge-99"), BOOT, DEAD), 1.0)
    assert metrics.values()[SITE_UP][(OTHER_SITES,)] == 0  # one of those that are counted together


def test_jobs_are_exported_by_status_and_a_few_by_name() -> None:
    bench = Bench()
    metrics = MetricsReader(bench)
    for number in range(40):
        bench.cloud.apply(JobSubmitted(f"job-{number:02}", text(f"job-{number:02}"), "t", at=float(number)))
        if number < 38:
            bench.cloud.apply(JobEnded(f"job-{number:02}", "done", "", at=100.0 - number if number else 500.0))
    values = metrics.values()
    assert values[JOBS][("done",)] == 38
    assert values[JOBS][("queued",)] == 2
    named = [run for (run,) in values[RUN_ROUNDS]]
    assert named == ["job-38", "job-39", "job-00", "job-01", "job-02"]  # open, then those that ended last
    assert len(named) == MAX_RUNS
    assert sum(len(series) for series in values.values()) < 150


def test_round_visit_and_job_metrics_are_updated() -> None:
    bench = FleetBench()
    metrics = MetricsReader(bench)
    bench.running()
    values = metrics.values()
    assert values[RUN_TOURS] == {("job",): 2}
    assert RUN_ACCURACY not in values
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    bench.close(accuracy=0.75, reasons={"a": "hot: <b>"})
    (closed,) = [it for it in map(read, bench.records) if isinstance(it, RoundClosed)]
    metrics.runs.recorded(closed, WALL)
    values = metrics.values()
    assert values[RUN_ACCURACY] == {("job",): 0.75}
    assert values[RUN_LOSS] == {("job",): 1.0}
    assert values[RUN_METRIC] == {("job", "accuracy"): 0.75, ("job", "loss"): 1.0}
    assert values[RUN_STATUS][("job", "running")] == 1
    assert values[ROUNDS] == {(): 1}
    assert values[ROUND_SECONDS][()].counts[-1] == 1
    assert values[VISITS][("done", "")] == 1
    assert values[VISITS][("declined", "hot")] == 1
    assert values[VISIT_SECONDS][()].sum == 1.5


def read(record: bytes) -> Any:
    return decoded(record, Record)


def test_site_messages_cannot_add_series() -> None:
    bench = Bench()
    metrics = MetricsReader(bench)
    before = set(metrics.values()[VISITS])
    statuses = ("declined", "lost", "refused", "done")
    visited = tuple(outcome(statuses[number % 4], f"made up {number}: \x1b[31m") for number in range(1000))
    metrics.runs.recorded(DevicesEstimated("job", {}, (), (), 0, visited=visited), WALL)
    values = metrics.values()
    assert set(values[VISITS]) == before
    assert sum(values[VISITS].values()) == 1000
    assert values[VISITS][("declined", "other")] == values[VISITS][("lost", "other")] == 250


def test_unmeasured_metrics_are_left_out() -> None:
    bench = Bench()
    bench.running()
    metrics = MetricsReader(bench)
    report = RoundReport(1, float("nan"), float("nan"), 2, 2, 0, 0, 1.0, {})
    bench.cloud.apply(RoundClosed("job", {"model": MODEL}, {"model": MODEL}, (), report))
    values = metrics.values()
    assert RUN_ACCURACY not in values
    assert RUN_LOSS not in values
    assert values[RUN_ROUNDS] == {("job",): 1}


def test_records_and_tours_update_job_progress_time() -> None:
    bench = Bench()
    bench.running()
    metrics = MetricsReader(bench)
    assert metrics.values(100.0)[RUN_PROGRESS] == {("job",): 100.0}
    assert metrics.values(200.0)[RUN_PROGRESS] == {("job",): 100.0}
    first = bench.cloud.state.jobs["job"].tours[0]
    progress = TourProgress(TourId("job", 1, first.number, 1), 0, 1, first.hops[0], 3, 10, 0, 0)
    bench.receive(site(first.site), progress)
    assert metrics.values(300.0)[RUN_PROGRESS] == {("job",): 300.0}
    bench.receive(site(first.site), progress)  # a heartbeat, and nothing more
    assert metrics.values(400.0)[RUN_PROGRESS] == {("job",): 300.0}
    bench.toured(first.number, first.site)
    metrics.runs.recorded(read(bench.changes[-1]), 500.0)
    assert metrics.values(600.0)[RUN_PROGRESS] == {("job",): 500.0}
    bench.cloud.apply(JobEnded("job", "stopped", ""))
    assert RUN_PROGRESS not in metrics.values(700.0)


def test_rollouts_export_status_and_device_states() -> None:
    bench = RolloutBench([f"d{number}" for number in range(4)])
    metrics = MetricsReader(bench)
    bench.begin()
    values = metrics.values()
    assert values[ROLLOUT][("l", "running")] == 1
    assert values[RELEASE_DEVICES][("l", "asked")] == 2
    first, second = bench.line().members
    bench.report(first, 1)
    assert metrics.values()[RELEASE_DEVICES][("l", "serving")] == 1
    bench.report(second, 1, state="failed", detail="no <such> file")
    values = metrics.values()
    assert values[ROLLOUT][("l", "rolling-back")] == 1
    assert values[RELEASE_DEVICES][("l", "asked")] == 2  # the order back was not answered yet
    for device in (first, second):
        bench.report(device, 2, version=0, state="withdrawn")
    values = metrics.values()
    assert values[ROLLOUT][("l", "rolled-back")] == 1
    assert values[RELEASE_DEVICES][("l", "withdrawn")] == 2
    assert sum(values[RELEASE_DEVICES].values()) == 2


@pytest.mark.parametrize("lines", [1, MAX_LINES + 10])
def test_number_of_exported_model_lines_is_limited(lines: int) -> None:
    bench = RolloutBench(["a"])
    for number in range(lines):
        bench.begin(line=f"line-{number}", ticket=f"t{number}")
    values = MetricsReader(bench).values()
    assert len({line for line, _ in values[ROLLOUT]}) == min(lines, MAX_LINES)
    assert (f"line-{lines - 1}", "running") in values[ROLLOUT]
