"""Usage reports of programs: exact sums, percentiles within a few percent, and hostile datagrams."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.inference import usage, usage_listener
from edge_agent.inference.usage import (
    LARGEST,
    MAX_PER_PROGRAM,
    MAX_PER_USER,
    WINDOW,
    ErrorCount,
    UsageReport,
    UsageSender,
    UsageTally,
    bin_of,
    percentile,
)
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.releases.orders import Usage
from sojourn.protocol.release import total_variation
from sojourn.protocol.task import Strata
from tests.edge_agent.releases.releases_made import LINE, Shop
from tests.edge_agent.releases.task_releases import VALUES, regression
from tests.there import there
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG, SHORT = 3600.0, 0.2


class Desk:
    """A listener in a store, and all of its reports."""

    def __init__(self, store: Path, pause: float = LONG) -> None:
        self.shop = Shop(store)
        self.shop.serve(1)
        self.usages: SimpleQueue[Usage] = SimpleQueue()
        self.listener = UsageListener(store, self.usages.put, pause)
        self.sender = UsageSender(store)

    def report(self, version: int, **what: Any) -> None:
        """Send a report until it is accepted: a socket holds ten datagrams, and refuses more until they are read."""
        wait_until(lambda: self.sender.send(UsageReport(LINE, version, **what)), "room for a datagram")

    def send_raw(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(data, str(self.shop.store / "release" / "usage.sock"))

    def next(self) -> Usage:
        return self.usages.get(timeout=LIMIT)

    def due(self) -> float | None:
        """Return when the next report is due, after the listener has read all datagrams, which keep their order."""
        before = self.listener.dropped
        self.send_raw(b"no report")
        wait_until(lambda: self.listener.dropped > before, "the listener to read all datagrams")
        return self.listener._lines[LINE].due

    def flushed(self) -> Usage:
        """Close the listener, and return the report that it sent at its end."""
        self.listener.close()
        return self.usages.get_nowait()

    def close(self) -> None:
        self.sender.close()
        self.listener.close()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(usage_listener, "_URGENT_PAUSE", SHORT)
    monkeypatch.setattr(usage_listener, "_GRACE", LIMIT)
    monkeypatch.setattr(usage, "WINDOW", LONG)
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder) / "store")
        yield desk
        desk.close()


@pytest.mark.parametrize("microseconds", [1.5, 7.0, 42.0, 999.0, 5e4, 3e6])
def test_time_is_accurate_within_a_few_percent(microseconds: float) -> None:
    assert percentile(Counter({bin_of(microseconds): 1}), 0.5) == pytest.approx(microseconds, rel=0.026)


def test_percentiles_match_numpy() -> None:
    times = np.random.default_rng(1).lognormal(5, 1, 5000)
    tally = UsageTally(times=Counter(bin_of(each) for each in times))
    pace = tally.pace()
    assert pace is not None
    assert [pace.median, pace.p95] == pytest.approx(np.percentile(times, [50, 95]), rel=0.05)


def test_extreme_times_have_a_bin() -> None:
    assert (bin_of(0), bin_of(1), bin_of(1e12)) == (0, 0, 399)


def test_class_mix_distance_is_total_variation() -> None:
    assert total_variation(Counter({0: 1, 1: 3}), Counter({0: 30, 1: 10})) == 0.5
    assert total_variation(Counter({0: 1}), Counter({5: 9})) == 1.0
    assert total_variation(Counter({0: 1}), Counter()) == 0.0


def test_reports_of_several_programs_are_summed(desk: Desk) -> None:
    other = UsageSender(desk.shop.store)
    desk.report(1, predictions=30, times={bin_of(100.0): 30}, classes={0: 20, 1: 10})
    assert desk.next().health.predictions == 30
    assert other.send(UsageReport(LINE, 1, predictions=30, times={bin_of(400.0): 30}, classes={1: 30}))
    usage = desk.next()
    other.close()
    assert (usage.line, usage.version, usage.failure) == (LINE, 1, "")
    assert usage.health.predictions == 60
    assert usage.health.mix == (20 / 60, 40 / 60)
    assert usage.health.live is not None
    assert usage.health.live.median == pytest.approx(100, rel=0.03)
    assert usage.health.live.p95 == pytest.approx(400, rel=0.03)


def test_fifty_predictions_report_at_once_then_after_the_pause(desk: Desk) -> None:
    desk.report(1, predictions=49, classes={0: 49})
    assert desk.next().health.predictions == 49  # the first report on this version
    desk.report(1, predictions=1, classes={0: 1})
    assert desk.next().health.predictions == 50
    desk.report(1, predictions=100, classes={0: 100})
    assert there(desk.due()) > time.monotonic() + LONG / 2
    assert desk.usages.empty()
    assert desk.flushed().health.predictions == 150


def test_report_follows_once_the_pause_is_over() -> None:
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder) / "store", pause=0.2)
        desk.report(1, predictions=60, classes={0: 60})
        desk.next()
        desk.report(1, predictions=1, classes={0: 1})
        assert desk.next().health.predictions == 61
        assert desk.due() is None  # nothing has changed
        desk.close()


def test_errors_and_failures_are_reported_at_once(desk: Desk) -> None:
    desk.report(1, predictions=60, classes={0: 60})
    desk.next()
    desk.report(1, errors=2, error_text="a dog, and no cat")
    assert desk.next().health.errors == 2
    desk.report(1, failure="it does not load")
    assert desk.next().failure == "it does not load"
    desk.report(1, failure="it does not load")
    assert desk.due() is None
    assert desk.usages.empty()


def test_new_version_is_compared_with_the_previous_one(desk: Desk) -> None:
    desk.report(1, predictions=60, times={bin_of(100.0): 60}, classes={0: 60})
    desk.next()
    desk.shop.serve(2)
    desk.report(1, predictions=40, times={bin_of(100.0): 40}, classes={1: 40})  # a program that still uses version 1
    desk.report(2, predictions=30, times={bin_of(200.0): 30}, classes={0: 30}, errors=1)
    few = desk.next()
    assert (few.version, few.health.predictions, few.health.live_drift) == (2, 30, 0.0)
    desk.report(2, predictions=30, times={bin_of(200.0): 30}, classes={0: 30})
    health = desk.next().health
    assert health.predictions == 60
    assert health.live_drift == pytest.approx(0.4)
    assert health.live is not None
    assert health.live_before is not None
    assert health.live.median / health.live_before.median == pytest.approx(2, rel=0.05)


def test_returning_version_restarts_its_counts_uncompared(desk: Desk) -> None:
    desk.report(1, predictions=60, errors=3, times={5: 60}, classes={0: 60})
    desk.next()
    desk.shop.serve(2)
    desk.report(2, predictions=60, times={50: 60}, classes={1: 60})
    desk.next()
    desk.shop.serve(1)
    desk.report(1, predictions=60, times={5: 60}, classes={0: 60})
    usage = desk.next()
    assert (usage.version, usage.health.predictions, usage.health.errors) == (1, 60, 0)
    assert (usage.health.live_before, usage.health.live_drift) == (None, 0.0)


def test_only_the_first_64_classes_are_in_the_mix(desk: Desk) -> None:
    desk.report(1, predictions=100, classes={0: 25, 63: 25, 64: 25, 1000: 25})
    mix = desk.next().health.mix
    assert len(mix) == 64
    assert (mix[0], mix[63], sum(mix)) == (0.25, 0.25, 0.5)


HOSTILE = [
    b"",
    b"\x00",
    b"\xc1" * 100,
    b"x" * LARGEST,
    b"\x91" * 5000,
    os.urandom(500),
    msgspec.msgpack.encode(["../../etc", 1]),
    msgspec.msgpack.encode(["no-such-line", 1, 5]),
    msgspec.msgpack.encode([LINE, 99, 5]),
    msgspec.msgpack.encode([LINE, 0, 5]),
    msgspec.msgpack.encode([LINE, 1, -5]),
    msgspec.msgpack.encode([LINE, 1, 1 << 60]),
    msgspec.msgpack.encode([LINE, 1, 5, {400: 1}]),
    msgspec.msgpack.encode([LINE, 1, 5, {}, {1001: 1}]),
    msgspec.msgpack.encode([LINE, 1, 5, {}, {}, 0, "", "x" * 501]),
    msgspec.msgpack.encode([LINE, 1, 5.5]),
    msgspec.msgpack.encode({"line": LINE}),
]


def test_invalid_reports_are_dropped_and_counted(desk: Desk) -> None:
    for data in HOSTILE:
        desk.send_raw(data)
    desk.send_raw(b"x" * (LARGEST + 10))
    desk.report(1, predictions=50, classes={0: 50})
    assert desk.next().health.predictions == 50
    assert desk.listener.dropped == len(HOSTILE)  # an empty datagram does not count, and the last is too long
    assert list(desk.listener._lines) == [LINE]


def test_largest_report_fits_into_a_datagram(desk: Desk) -> None:
    most = 1 << 40
    times, classes = dict.fromkeys(range(400), most), dict.fromkeys(range(1001), most)
    report = UsageReport(LINE, 1, most, times, classes, most, "\U0001f436" * 500, "\U0001f436" * 500)
    assert len(msgspec.msgpack.encode(report)) <= LARGEST
    assert desk.sender.send(report)
    assert desk.next().failure == "\U0001f436" * 500


def test_huge_numbers_are_capped(desk: Desk) -> None:
    most = 1 << 40
    desk.report(1, predictions=1)
    desk.next()
    for _ in range(3):
        desk.report(1, predictions=most, times={399: most}, classes={0: most}, errors=most)
    usage = desk.next()
    assert msgspec.convert(msgspec.to_builtins(usage), Usage).health.predictions == most


def test_bursts_of_errors_are_reported_together(desk: Desk) -> None:
    begun = time.monotonic()
    for _ in range(200):
        desk.report(1, errors=1)
        time.sleep(0.001)
    usages = [desk.next()]
    while usages[-1].health.errors < MAX_PER_PROGRAM:
        usages.append(desk.next())
    assert len(usages) <= 2 + (time.monotonic() - begun) / SHORT


def test_errors_per_program_are_capped(desk: Desk) -> None:
    desk.report(1, errors=1 << 40)
    assert desk.next().health.errors == MAX_PER_PROGRAM
    program = (
        "import sys, pathlib\n"
        "from edge_agent.inference.usage import UsageReport, UsageSender\n"
        f"assert UsageSender(pathlib.Path(sys.argv[1])).send(UsageReport({LINE!r}, 1, errors=3))"
    )
    subprocess.run([sys.executable, "-c", program, str(desk.shop.store)], check=True)
    assert desk.next().health.errors == MAX_PER_PROGRAM + 3
    desk.report(1, errors=5)
    assert desk.due() is None
    assert desk.usages.empty()


def test_errors_per_user_are_capped_across_programs() -> None:
    count = ErrorCount()
    counted = [count.counted(1000, program, 1, 5.0) for program in range(1000)]
    assert sum(counted) == MAX_PER_USER
    assert count.counted(1001, 7, 99, 6.0) == MAX_PER_PROGRAM
    assert count.counted(1000, 7, 99, 5.0 + WINDOW) == MAX_PER_PROGRAM  # another window
    crowd = [count.counted(user, user, 1, 70.0) for user in range(2000, 3000)]
    assert sum(crowd) < 300


def test_sending_without_a_listener_returns_false(tmp_path: Path) -> None:
    sender = UsageSender(tmp_path)
    assert not sender.send(UsageReport(LINE, 1))
    sender.close()


def test_socket_is_group_accessible_and_recreated_after_a_crash(desk: Desk) -> None:
    path = desk.shop.store / "release" / "usage.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    usages: SimpleQueue[Usage] = SimpleQueue()
    second = UsageListener(desk.shop.store, usages.put)
    desk.report(1, predictions=50)
    assert usages.get(timeout=LIMIT).health.predictions == 50
    second.close()
    assert not path.exists()


def test_store_with_a_long_path_has_a_socket(tmp_path: Path) -> None:
    desk = Desk(tmp_path / ("long" * 30) / "store")
    desk.report(1, predictions=50)
    assert desk.next().health.predictions == 50
    desk.close()


def test_releases_with_different_strata_are_not_compared(tmp_path: Path) -> None:
    """The strata of two releases may differ, so that the same index means another range of values."""
    shop = Shop(tmp_path / "store")
    line = usage_listener.LineUsage(shop.folder)
    for version, moved in ((1, False), (2, False), (3, True)):
        task = msgspec.structs.replace(VALUES, strata=Strata(2, edges=(5.0 + moved,)))
        made = regression(version)
        shop.serve(version, graph=made["graph"], card=msgspec.structs.replace(made["card"], task=task))
        line.look()
        assert line.same_groups == (not moved)
        line.add(UsageReport(LINE, version, 60, {1: 60}, {version % 2: 60}), usage_listener.UNKNOWN_SENDER, 0.0, 1.0)
        assert line.usage(0.0).health.live_drift == (1.0 if version == 2 else 0.0)
