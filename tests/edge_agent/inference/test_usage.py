"""What programs tell the agent: exact sums, percentiles within a few percent, and nothing that can hurt it."""

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

from edge_agent.inference import reporters, usage_listener
from edge_agent.inference.reporters import OF_ONE_PROGRAM, OF_ONE_USER, WINDOW, ErrorCount
from edge_agent.inference.usage import LARGEST, UsageReport, UsageSender, UsageTally, bin_of, percentile
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.releases.work import Usage
from sojourn.model.class_mix import total_variation
from sojourn.protocol.task import Strata
from tests.edge_agent.releases.releases_made import LINE, Shop
from tests.edge_agent.releases.task_releases import VALUES, regression
from tests.there import there
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG, SHORT = 3600.0, 0.2


class Desk:
    """A listener beside a store, and all that it tells."""

    def __init__(self, store: Path, pause: float = LONG) -> None:
        self.shop = Shop(store)
        self.shop.serve(1)
        self.told: SimpleQueue[Usage] = SimpleQueue()
        self.listener = UsageListener(store, self.told.put, pause)
        self.teller = UsageSender(store)

    def tell(self, version: int, **what: Any) -> None:
        """Tell it until it is taken: a socket holds ten datagrams, and refuses more until they are read."""
        wait_until(lambda: self.teller.tell(UsageReport(LINE, version, **what)), "room for a datagram")

    def send(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(data, str(self.shop.store / "release" / "usage.sock"))

    def next(self) -> Usage:
        return self.told.get(timeout=LIMIT)

    def due(self) -> float | None:
        """When the listener will tell what is new, after it has read all that was sent: datagrams keep their order."""
        before = self.listener.dropped
        self.send(b"no report")
        wait_until(lambda: self.listener.dropped > before, "the listener to read all datagrams")
        return self.listener._lines[LINE].due

    def flushed(self) -> Usage:
        """What the listener had yet to say when it ended."""
        self.listener.close()
        return self.told.get_nowait()

    def close(self) -> None:
        self.teller.close()
        self.listener.close()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(usage_listener, "_SHORT_PAUSE", SHORT)
    monkeypatch.setattr(usage_listener, "_GRACE", LIMIT)
    monkeypatch.setattr(reporters, "WINDOW", LONG)
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder) / "store")
        yield desk
        desk.close()


@pytest.mark.parametrize("microseconds", [1.5, 7.0, 42.0, 999.0, 5e4, 3e6])
def test_a_time_is_known_within_a_few_percent(microseconds: float) -> None:
    assert percentile(Counter({bin_of(microseconds): 1}), 0.5) == pytest.approx(microseconds, rel=0.026)


def test_percentiles_agree_with_numpys() -> None:
    times = np.random.default_rng(1).lognormal(5, 1, 5000)
    tally = UsageTally(times=Counter(bin_of(each) for each in times))
    pace = tally.pace()
    assert pace is not None
    assert [pace.median, pace.p95] == pytest.approx(np.percentile(times, [50, 95]), rel=0.05)


def test_extreme_times_have_a_bin() -> None:
    assert (bin_of(0), bin_of(1), bin_of(1e12)) == (0, 0, 399)


def test_mixes_are_apart_by_total_variation() -> None:
    assert total_variation(Counter({0: 1, 1: 3}), Counter({0: 30, 1: 10})) == 0.5
    assert total_variation(Counter({0: 1}), Counter({5: 9})) == 1.0
    assert total_variation(Counter({0: 1}), Counter()) == 0.0


def test_reports_of_several_programs_are_added_up(desk: Desk) -> None:
    other = UsageSender(desk.shop.store)
    desk.tell(1, predictions=30, times={bin_of(100.0): 30}, classes={0: 20, 1: 10})
    assert desk.next().health.predictions == 30
    assert other.tell(UsageReport(LINE, 1, predictions=30, times={bin_of(400.0): 30}, classes={1: 30}))
    usage = desk.next()
    other.close()
    assert (usage.line, usage.version, usage.failure) == (LINE, 1, "")
    assert usage.health.predictions == 60
    assert usage.health.mix == (20 / 60, 40 / 60)
    assert usage.health.live is not None
    assert usage.health.live.median == pytest.approx(100, rel=0.03)
    assert usage.health.live.p95 == pytest.approx(400, rel=0.03)


def test_fifty_predictions_are_told_at_once_and_then_only_after_the_pause(desk: Desk) -> None:
    desk.tell(1, predictions=49, classes={0: 49})
    assert desk.next().health.predictions == 49  # the first word on it
    desk.tell(1, predictions=1, classes={0: 1})
    assert desk.next().health.predictions == 50
    desk.tell(1, predictions=100, classes={0: 100})
    assert there(desk.due()) > time.monotonic() + LONG / 2
    assert desk.told.empty()
    assert desk.flushed().health.predictions == 150


def test_the_pause_passes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder) / "store", pause=0.2)
        desk.tell(1, predictions=60, classes={0: 60})
        desk.next()
        desk.tell(1, predictions=1, classes={0: 1})
        assert desk.next().health.predictions == 61
        assert desk.due() is None  # nothing has changed
        desk.close()


def test_errors_and_failures_are_told_at_once(desk: Desk) -> None:
    desk.tell(1, predictions=60, classes={0: 60})
    desk.next()
    desk.tell(1, errors=2, words="a dog, and no cat")
    assert desk.next().health.errors == 2
    desk.tell(1, failure="it does not load")
    assert desk.next().failure == "it does not load"
    desk.tell(1, failure="it does not load")
    assert desk.due() is None
    assert desk.told.empty()


def test_a_new_version_is_compared_with_the_one_before(desk: Desk) -> None:
    desk.tell(1, predictions=60, times={bin_of(100.0): 60}, classes={0: 60})
    desk.next()
    desk.shop.serve(2)
    desk.tell(1, predictions=40, times={bin_of(100.0): 40}, classes={1: 40})  # a program that is slower to swap
    desk.tell(2, predictions=30, times={bin_of(200.0): 30}, classes={0: 30}, errors=1)
    few = desk.next()
    assert (few.version, few.health.predictions, few.health.live_drift) == (2, 30, 0.0)
    desk.tell(2, predictions=30, times={bin_of(200.0): 30}, classes={0: 30})
    health = desk.next().health
    assert health.predictions == 60
    assert health.live_drift == pytest.approx(0.4)
    assert health.live is not None
    assert health.live_before is not None
    assert health.live.median / health.live_before.median == pytest.approx(2, rel=0.05)


def test_a_version_that_returns_begins_anew_and_is_not_compared(desk: Desk) -> None:
    desk.tell(1, predictions=60, errors=3, times={5: 60}, classes={0: 60})
    desk.next()
    desk.shop.serve(2)
    desk.tell(2, predictions=60, times={50: 60}, classes={1: 60})
    desk.next()
    desk.shop.serve(1)
    desk.tell(1, predictions=60, times={5: 60}, classes={0: 60})
    usage = desk.next()
    assert (usage.version, usage.health.predictions, usage.health.errors) == (1, 60, 0)
    assert (usage.health.live_before, usage.health.live_drift) == (None, 0.0)


def test_only_the_first_classes_are_in_the_mix(desk: Desk) -> None:
    desk.tell(1, predictions=100, classes={0: 25, 63: 25, 64: 25, 1000: 25})
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


def test_what_is_no_report_is_dropped_and_counted(desk: Desk) -> None:
    for data in HOSTILE:
        desk.send(data)
    desk.send(b"x" * (LARGEST + 10))
    desk.tell(1, predictions=50, classes={0: 50})
    assert desk.next().health.predictions == 50
    assert desk.listener.dropped == len(HOSTILE)  # the empty one is none, and the last is too long
    assert list(desk.listener._lines) == [LINE]


def test_the_largest_report_fits_into_a_datagram(desk: Desk) -> None:
    most = 1 << 40
    times, classes = dict.fromkeys(range(400), most), dict.fromkeys(range(1001), most)
    report = UsageReport(LINE, 1, most, times, classes, most, "\U0001f436" * 500, "\U0001f436" * 500)
    assert len(msgspec.msgpack.encode(report)) <= LARGEST
    assert desk.teller.tell(report)
    assert desk.next().failure == "\U0001f436" * 500


def test_huge_numbers_stay_within_what_a_report_may_hold(desk: Desk) -> None:
    most = 1 << 40
    desk.tell(1, predictions=1)
    desk.next()
    for _ in range(3):
        desk.tell(1, predictions=most, times={399: most}, classes={0: most}, errors=most)
    usage = desk.next()
    assert msgspec.convert(msgspec.to_builtins(usage), Usage).health.predictions == most


def test_many_errors_are_told_together(desk: Desk) -> None:
    begun = time.monotonic()
    for _ in range(200):
        desk.tell(1, errors=1)
        time.sleep(0.001)
    told = [desk.next()]
    while told[-1].health.errors < OF_ONE_PROGRAM:
        told.append(desk.next())
    assert len(told) <= 2 + (time.monotonic() - begun) / SHORT


def test_the_errors_of_one_program_count_a_few_times_and_those_of_another_still(desk: Desk) -> None:
    desk.tell(1, errors=1 << 40)
    assert desk.next().health.errors == OF_ONE_PROGRAM
    program = (
        "import sys, pathlib\n"
        "from edge_agent.inference.usage import UsageReport, UsageSender\n"
        f"assert UsageSender(pathlib.Path(sys.argv[1])).tell(UsageReport({LINE!r}, 1, errors=3))"
    )
    subprocess.run([sys.executable, "-c", program, str(desk.shop.store)], check=True)
    assert desk.next().health.errors == OF_ONE_PROGRAM + 3
    desk.tell(1, errors=5)
    assert desk.due() is None
    assert desk.told.empty()


def test_of_one_user_not_many_errors_count_however_many_programs_report_them() -> None:
    count = ErrorCount()
    counted = [count.counted(1000, program, 1, 5.0) for program in range(1000)]
    assert sum(counted) == OF_ONE_USER
    assert count.counted(1001, 7, 99, 6.0) == OF_ONE_PROGRAM
    assert count.counted(1000, 7, 99, 5.0 + WINDOW) == OF_ONE_PROGRAM  # another window
    crowd = [count.counted(user, user, 1, 70.0) for user in range(2000, 3000)]
    assert sum(crowd) < 300


def test_nobody_listens(tmp_path: Path) -> None:
    teller = UsageSender(tmp_path)
    assert not teller.tell(UsageReport(LINE, 1))
    teller.close()


def test_the_socket_is_for_the_group_and_is_made_anew_after_a_crash(desk: Desk) -> None:
    path = desk.shop.store / "release" / "usage.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    told: SimpleQueue[Usage] = SimpleQueue()
    second = UsageListener(desk.shop.store, told.put)
    desk.tell(1, predictions=50)
    assert told.get(timeout=LIMIT).health.predictions == 50
    second.close()
    assert not path.exists()


def test_a_store_with_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path / ("long" * 30) / "store")
    desk.tell(1, predictions=50)
    assert desk.next().health.predictions == 50
    desk.close()


def test_answers_that_fall_into_other_groups_are_not_compared(tmp_path: Path) -> None:
    """Strata of two releases may differ: the same number then means another range of values."""
    shop = Shop(tmp_path / "store")
    line = usage_listener.LineUsage(shop.folder)
    for version, moved in ((1, False), (2, False), (3, True)):
        task = msgspec.structs.replace(VALUES, strata=Strata(2, edges=(5.0 + moved,)))
        made = regression(version)
        shop.serve(version, graph=made["graph"], card=msgspec.structs.replace(made["card"], task=task))
        line.look()
        assert line.alike == (not moved)
        line.add(UsageReport(LINE, version, 60, {1: 60}, {version % 2: 60}), usage_listener.NOBODY, 0.0, 1.0)
        assert line.usage(0.0).health.live_drift == (1.0 if version == 2 else 0.0)
