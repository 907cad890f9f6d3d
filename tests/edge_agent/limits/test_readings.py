"""What is read from /proc and /sys, also where a machine tells little or nonsense."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge_agent.limits import readings
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.there import there


@pytest.fixture
def root(tmp_path) -> FakeRoot:
    return FakeRoot(tmp_path)


def test_a_machine_that_tells_nothing(root) -> None:
    found = (readings.temperature, readings.free_memory, readings.routes, readings.charge)
    assert [read(root.path) for read in found] == [None, None, (), None]


def test_the_hottest_zone_counts(root) -> None:
    root.heat(41.5)
    root.heat(62.0, zone=1, kind="gpu-thermal")
    assert readings.temperature(root.path) == 62.0
    assert readings.temperature(root.path, ("cpu-thermal",)) == 41.5
    assert readings.temperature(root.path, ("nvme",)) is None


def test_a_zone_that_tells_nonsense_does_not_count(root) -> None:
    root.heat(41.5)
    root.heat(100, zone=1, kind="PMIC-Die")
    root.heat(-273.2, zone=2)
    root.heat(200, zone=3)
    root.write("sys/class/thermal/thermal_zone4/temp", "N/A\n")
    assert readings.temperature(root.path) == 41.5
    assert readings.temperature(root.path, ("PMIC-Die",)) == 100


def test_memory_is_what_is_available(root) -> None:
    root.memory(300)
    assert readings.free_memory(root.path) == 300
    root.write("proc/meminfo", "MemAvailable:\nMemAvailable: much kB\n")
    assert readings.free_memory(root.path) is None


def test_the_default_route_with_the_least_metric_is_used(root) -> None:
    root.routes(("wwan0", 700), ("eth0", 100))
    assert readings.routes(root.path) == ("eth0",)
    root.routes(("wwan0", 700), ("usb0", 700))
    assert readings.routes(root.path) == ("wwan0", "usb0")


def test_ipv6_has_its_own_default_route(root) -> None:
    everywhere, net = "0" * 32, "fe800000" + "0" * 24
    rows = [(everywhere, "00", 400, "wwan0"), (everywhere, "00", 0xFFFFFFFF, "lo"), (net, "40", 1, "eth0")]
    form = f"{{}} {{}} {everywhere} 00 {everywhere} {{:08x}} 1 0 00000003 {{}}"
    lines = [form.format(*row) for row in rows]
    root.write("proc/net/ipv6_route", "\n".join(lines) + "\n")
    assert readings.routes(root.path) == ("wwan0",)
    root.routes(("eth0", 100))
    assert readings.routes(root.path) == ("eth0", "wwan0")


def test_a_battery_counts_only_when_it_is_drawn_from(root) -> None:
    root.supply("BAT0", "Battery", status="Discharging", capacity=40)
    root.supply("mouse", "Battery", scope="Device", status="Discharging", capacity=90)
    assert readings.charge(root.path) == 40
    root.supply("BAT1", "Battery", status="Unknown", capacity=60)
    assert readings.charge(root.path) == 60
    root.supply("AC", "Mains", online=1)
    assert readings.charge(root.path) is None
    root.supply("AC", "Mains", online=0)
    assert readings.charge(root.path) == 60
    root.supply("BAT1", "Battery", status="Charging")
    assert readings.charge(root.path) is None


def test_free_disk_is_told_of_the_folder_that_will_be(tmp_path) -> None:
    room = os.statvfs(tmp_path)
    found = readings.free_disk(tmp_path / "not" / "yet")
    assert found == pytest.approx(room.f_bavail * room.f_frsize / 2**20, rel=0.1)


HOLDING = "print(flush=True); input(); held = bytearray(b'x') * (64 << 20); print(flush=True); input()"


def test_what_a_process_has_resident_grows_with_what_it_holds() -> None:
    # Of a process of its own: this one may give memory back meanwhile.
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        talk = there(child.stdin), there(child.stdout)
        talk[1].readline()
        before = there(readings.resident(child.pid))
        talk[0].write(b"\n")
        talk[0].flush()
        talk[1].readline()
        assert there(readings.resident(child.pid)) - before == pytest.approx(64, abs=8)
        talk[0].write(b"\n")
    assert readings.resident(2**22 + 1) is None
