"""Output about a device: what it trains, why its last visit failed, its releases."""

from __future__ import annotations

from rich.console import Console

from coordinator.console.fleet_tables import device_lines, device_table
from sojourn.protocol.operator_messages import DeviceNow, FleetDevice, LastVisit, ReleaseNow, VisitNow

NOW = 1_790_000_000.0


def device(doing: DeviceNow, last: LastVisit | None = None) -> FleetDevice:
    return FleetDevice("pi-1", True, NOW - 90, NOW - 900, "hall", "0.9.0", "Pi 4", 3, 1, last, None, doing)


def test_table_shows_training_and_last_failed_visit() -> None:
    last = LastVisit(NOW - 30, "digits", 3, "train", "declined", "hot: 81 °C")
    table = device_table([device(DeviceNow(VisitNow("digits", 4, 0, 1, 3, 9)), last)], NOW)
    console = Console(width=160, record=True, file=None)
    with console.capture() as shown:
        console.print(table)
    row = shown.get().splitlines()[1]
    assert "online 2 min, trains digits round 4" in row
    assert "digits round 3, declined, 30 s ago: hot: 81 °C" in row


def test_device_lines_show_served_releases() -> None:
    releases = (ReleaseNow("digits", 2, "serving"), ReleaseNow("faults", 0, "refused", "no room"))
    found = [text for word, text in device_lines(device(DeviceNow(None, releases)), NOW) if word == "serves"]
    assert found == ["digits 2 (serving)", "faults nothing (refused: no room)"]
