"""The view of a model line: its version, its devices and their health, in a message that fits a packet."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest

from coordinator.machine.answers import MAX_LIST_SIZE, first_page
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.release import Health, HealthRules, Pace
from sojourn.protocol.release_messages import Releases
from tests.coordinator.machine.cloud_bench import BOOT
from tests.coordinator.machine.rollout_bench import RolloutBench, goods
from tests.coordinator.machine.test_rollouts import TEN, bench

SLOW = Health(pace=Pace(1.0, 3000.0), pace_before=Pace(1.0, 1000.0))


def test_served_version_follows_the_rollout() -> None:
    it = bench(2)

    def view() -> tuple[Any, ...]:
        (line,) = it.ask()
        return line.status, line.version, line.before, line.serves, line.goods, line.serial, line.stage

    it.begin(stages=(1.0,))
    assert view() == ("running", 1, 0, 0, None, 2, 1)
    it.through()
    assert view() == ("done", 1, 0, 1, goods(1), 2, 1)
    it.begin(2, before=1, serial=3, ticket="u", stages=(1.0,))
    assert view() == ("running", 2, 1, 1, goods(1), 4, 1)
    it.steer("rollback")
    assert view() == ("rolling-back", 2, 1, 1, goods(1), 4, 1)
    for device in TEN[:2]:
        it.report(device, 4, 1)
    assert view() == ("rolled-back", 2, 1, 1, goods(1), 4, 1)


def test_unhealthy_devices_come_first_then_stage_and_name() -> None:
    it = bench(4, sites=1)
    it.begin(stages=(0.25, 1.0), rules=HealthRules(failures=1.0, soak=0.0))
    (first,) = it.line().members
    it.report(first, 1)
    later = sorted(set(TEN[:4]) - {first})
    it.report(later[1], 1, 0, "failed", detail="no")
    it.report(later[2], 1, health=SLOW)
    views = it.ask("l")[0].devices
    assert [view.device for view in views] == [later[1], later[2], first, later[0]]
    assert [view.state for view in views] == ["failed", "serving", "serving", "sent"]
    assert [view.stage for view in views] == [2, 2, 1, 2]
    assert views[0].detail == "no"
    assert "3.0 times as slow" in views[1].detail
    assert it.ask("l")[0].counts == {"failed": 1, "serving": 2, "sent": 1}


def test_unanswered_device_shows_as_ordered_or_away() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(1.0,))
    it.report(TEN[0], 1, 0, "fetching")
    it.join("s0", TEN[:1], revision=2)
    states = {view.device: view.state for view in it.ask("l")[0].devices}
    assert states == {TEN[0]: "fetching", TEN[1]: "away"}
    it.steer("rollback")
    views = {view.device: view for view in it.ask("l")[0].devices}
    assert (views[TEN[0]].state, views[TEN[0]].serial) == ("sent", 1)
    assert views[TEN[1]].state == "away"


def test_devices_are_listed_only_for_the_requested_line() -> None:
    it = bench(2)
    it.begin(stages=(1.0,))
    assert it.ask()[0].devices == ()
    assert len(it.ask("l")[0].devices) == 2
    assert it.ask()[0].counts == {"sent": 2}


def test_large_line_fits_in_one_message_with_unhealthy_devices() -> None:
    names = tuple(f"{number:04}-{'d' * 58}" for number in range(2000))
    it = RolloutBench(names, 4)
    it.begin(stages=(1.0,), rules=HealthRules(failures=1.0))
    full = Health(rows=1, mix=(1 / 64,) * 64, predictions=1 << 40)
    for name in names[:30]:
        it.report(name, 1, health=full)
    it.report(names[17], 1, 0, "failed", full, "€" * 2000)
    (line,) = it.ask("l")
    assert line.devices[0].device == names[17]
    assert len(line.devices[0].detail) == 2000
    assert sum(line.counts.values()) == 2000
    assert 10 < len(line.devices) < 2000
    assert len(pack(Packet(1, BOOT, Releases("q", (line,))))) < PORTABLE_PAYLOAD


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([], 0),
        ([10], 1),
        ([MAX_LIST_SIZE + 1000], 1),
        ([MAX_LIST_SIZE + 1000, 1], 1),
        ([1, MAX_LIST_SIZE + 1000], 1),
        ([MAX_LIST_SIZE // 2] * 3, 2),
    ],
)
def test_page_holds_what_fits_and_at_least_one_item(sizes, kept) -> None:
    items = [b"x" * (size - 5 if size > 300 else size) for size in sizes]
    found = first_page(items)
    assert found == tuple(items[:kept])
    used = [*accumulate(len(msgspec.msgpack.encode(item)) for item in found)]
    assert all(end <= MAX_LIST_SIZE for end in used[1:])
