"""Readings from /proc and /sys, also with missing or wrong values."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge_agent import machine_readings
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.there import there


@pytest.fixture
def root(tmp_path) -> FakeRoot:
    return FakeRoot(tmp_path)


def test_machine_without_sensors_reads_as_unknown(root) -> None:
    found = (
        machine_readings.temperature,
        machine_readings.free_memory,
        machine_readings.routes,
        machine_readings.charge,
    )
    assert [read(root.path) for read in found] == [None, None, (), None]


def test_hottest_zone_is_used(root) -> None:
    root.heat(41.5)
    root.heat(62.0, zone=1, kind="gpu-thermal")
    assert machine_readings.temperature(root.path) == 62.0
    assert machine_readings.temperature(root.path, ("cpu-thermal",)) == 41.5
    assert machine_readings.temperature(root.path, ("nvme",)) is None


def test_implausible_thermal_zone_is_ignored(root) -> None:
    root.heat(41.5)
    root.heat(100, zone=1, kind="PMIC-Die")
    root.heat(-273.2, zone=2)
    root.heat(200, zone=3)
    root.write("sys/class/thermal/thermal_zone4/temp", "N/A\n")
    assert machine_readings.temperature(root.path) == 41.5
    assert machine_readings.temperature(root.path, ("PMIC-Die",)) == 100


def test_free_memory_reads_mem_available(root) -> None:
    root.memory(300)
    assert machine_readings.free_memory(root.path) == 300
    root.write("proc/meminfo", "MemAvailable:\nMemAvailable: much kB\n")
    assert machine_readings.free_memory(root.path) is None


def test_default_route_with_the_lowest_metric_is_used(root) -> None:
    root.routes(("wwan0", 700), ("eth0", 100))
    assert machine_readings.routes(root.path) == ("eth0",)
    root.routes(("wwan0", 700), ("usb0", 700))
    assert machine_readings.routes(root.path) == ("wwan0", "usb0")


def test_ipv6_default_route_is_read_separately(root) -> None:
    everywhere, net = "0" * 32, "fe800000" + "0" * 24
    rows = [(everywhere, "00", 400, "wwan0"), (everywhere, "00", 0xFFFFFFFF, "lo"), (net, "40", 1, "eth0")]
    form = f"{{}} {{}} {everywhere} 00 {everywhere} {{:08x}} 1 0 00000003 {{}}"
    lines = [form.format(*row) for row in rows]
    root.write("proc/net/ipv6_route", "\n".join(lines) + "\n")
    assert machine_readings.routes(root.path) == ("wwan0",)
    root.routes(("eth0", 100))
    assert machine_readings.routes(root.path) == ("eth0", "wwan0")


def test_battery_counts_only_while_discharging(root) -> None:
    root.supply("BAT0", "Battery", status="Discharging", capacity=40)
    root.supply("mouse", "Battery", scope="Device", status="Discharging", capacity=90)
    assert machine_readings.charge(root.path) == 40
    root.supply("BAT1", "Battery", status="Unknown", capacity=60)
    assert machine_readings.charge(root.path) == 60
    root.supply("AC", "Mains", online=1)
    assert machine_readings.charge(root.path) is None
    root.supply("AC", "Mains", online=0)
    assert machine_readings.charge(root.path) == 60
    root.supply("BAT1", "Battery", status="Charging")
    assert machine_readings.charge(root.path) is None


def test_free_disk_is_measured_for_a_folder_not_yet_created(tmp_path) -> None:
    room = os.statvfs(tmp_path)
    found = machine_readings.free_disk(tmp_path / "not" / "yet")
    assert found == pytest.approx(room.f_bavail * room.f_frsize / 2**20, rel=0.1)


HOLDING = "print(flush=True); input(); held = bytearray(b'x') * (64 << 20); print(flush=True); input()"


def test_resident_memory_grows_with_allocations() -> None:
    # Of a separate process: this one may free memory during the test.
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        talk = there(child.stdin), there(child.stdout)
        talk[1].readline()
        before = there(machine_readings.resident(child.pid))
        talk[0].write(b"\n")
        talk[0].flush()
        talk[1].readline()
        assert there(machine_readings.resident(child.pid)) - before == pytest.approx(64, abs=8)
        talk[0].write(b"\n")
    assert machine_readings.resident(2**22 + 1) is None
