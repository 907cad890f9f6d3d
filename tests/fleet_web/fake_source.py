"""A source with test data, including hostile texts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinator.console.job_progress import JobProgress
from fleet_web.sources.source import LIVE, Reach
from sojourn.errors import JobError
from sojourn.protocol.operator_messages import (
    DeviceNow,
    FleetChange,
    FleetDevice,
    LastVisit,
    ReleaseNow,
    VisitNote,
    VisitNow,
)
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.release import DeviceView, Health, HealthRules, LineView, Pace, RolloutPlan, RolloutTurn
from sojourn.protocol.wire import JobTimes, JobView, RoundReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_web.sources.source import Topic

NOW = 1_790_000_000.0
HOSTILE = (
    "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
    "{{ constructor.constructor('window.owned = 1')() }} ${window.owned = 1} `; \u202egnihtemos\u202c \x1b[2J\x00 "
    + "w"
    * 3000
)


def device(name: str = "pi-1", *, online: bool = True, text: str = "hot: 81 °C", **changes) -> FleetDevice:
    last = LastVisit(NOW - 30, "digits", 3, "train", "declined", text[:200])
    doing = DeviceNow(None, (ReleaseNow("digits", 2, "serving", text[:200]),), 4, 4_000_000_000, 3)
    found = FleetDevice(name, online, NOW - 90, NOW - 900, "hall", text[:200], text[:200], 12, 1, last, None, doing)

    return replace(found, **changes)


def training(name: str = "pi-2") -> FleetDevice:
    return device(name, doing=DeviceNow(VisitNow("digits", 4, 0, 1, 30, 60), (), 1, 1_000_000_000, 3))


def line(text: str = "accuracy fell") -> LineView:
    health = Health(rows=60, pace=Pace(100.0, 200.0), accuracy=0.9, accuracy_before=0.95, predictions=7)
    views = (DeviceView("pi-1", 1, 3, 2, "failed", text, health), DeviceView("pi-2", 1, 3, 1, "serving"))
    plan = RolloutPlan(HealthRules(), True, (RolloutTurn(NOW - 10, "rolled-back", 2, text[:2000]),))
    return LineView(
        "digits", "rolled-back", text, 3, 2, 1, 1, None, (0.1, 1.0), 1, {"failed": 1, "serving": 1}, plan, views
    )


class FakeSource:
    """A source that returns the same text wherever a peer can provide one."""

    name = LIVE

    def __init__(self, text: str = "hot: 81 °C", devices: Sequence[FleetDevice] | None = None) -> None:
        self.text = text
        self.listed = (
            list(devices) if devices is not None else [device(text=text), training(), device("pi-3", online=False)]
        )
        self.marks = 1
        self.here = True

    def reach(self) -> Reach:
        return Reach(self.here, "" if self.here else "no broker listens", None if self.here else NOW)

    def mark(self, topic: Topic) -> int:
        return self.marks

    def now(self) -> float:
        return NOW

    async def devices(self):
        return self.listed

    async def device(self, name: str):
        for it in self.listed:
            if it.device == name:
                return it
        raise JobError(f"no device {name!r} has ever connected")

    async def visits(self, device=None, job=None, last=200):
        note = VisitNote(NOW - 30, "digits", 3, "train", 0, 1, "hall", "pi-1", "declined", self.text[:2000], 0, 1.5)
        return [note, note]

    async def changes(self, device=None, last=200):
        return [FleetChange(NOW - 900, "pi-1", "hall", "online")]

    async def jobs(self):
        times = JobTimes(NOW - 1000, NOW - 5, 100.0)
        return [
            JobView("digits", self.text[:200], self.text[:200], "done", self.text, 3, 3, "train", 0.9, 3, times=times)
        ]

    async def job(self, name: str):
        report = RoundReport(3, 0.9, 0.3, 1, 2, 1, 20_000, 5.0, {}, (self.text,), NOW - 30)
        return JobProgress((await self.jobs())[0], (report,))

    async def lines(self):
        return [line(self.text)]

    async def line(self, name: str):
        return line(self.text)

    async def card(self, line: str, version: int):
        raise JobError(self.text)

    async def acts(self, last=200):
        return [AuditEntry(1, NOW - 7, self.text[:200], "stop digits", "refused", self.text[:2000], "t", None, b"")]


def main(port: int, text: str) -> None:
    """Serve a source with this many devices and this text in every field a peer controls."""
    from fleet_web.security.exposure import Exposure
    from fleet_web.serving import serve
    from fleet_web.sources.source import Sources

    many = [device(f"pi-{number}", text=text if number % 2 else "x") for number in range(1, 3001)]
    serve(Sources([FakeSource(text, [*many, training("pi-9999")])]), None, Exposure(host="127.0.0.1", port=port))


if __name__ == "__main__":
    main(int(sys.argv[1]), HOSTILE)
