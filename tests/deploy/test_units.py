"""What systemd's tools report about the units, without running them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLES = ("coordinator", "web", "agent", "edge")
ALL = sorted(DEPLOY.glob("*/sojourn-*.service"))
UNITS = [unit for unit in ALL if unit.stem.removeprefix("sojourn-") in ROLES]
DOOR = DEPLOY / "coordinator" / "sojourn-door.service"
DEBIAN_MOSQUITTO = """
[Service]
Type=notify
NotifyAccess=main
ExecStart=/bin/true
ExecReload=/bin/kill -HUP $MAINPID
ExecStartPre=/bin/mkdir -m 740 -p /run/mosquitto
ExecStartPre=/bin/chown mosquitto: /run/mosquitto
"""


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_every_role_has_a_unit() -> None:
    assert [unit.name for unit in UNITS] == [
        "sojourn-coordinator.service",
        "sojourn-web.service",
        "sojourn-agent.service",
        "sojourn-edge.service",
    ]
    assert {unit.stem for unit in ALL if unit not in UNITS} == {"sojourn-door", "sojourn-broker-reload"}


@pytest.mark.parametrize("unit", [*UNITS, DOOR], ids=lambda unit: unit.stem)
def test_unit_passes_verification_and_security_score(unit: Path, tmp_path: Path) -> None:
    """The program is not installed here: another one takes its place."""
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    most = 25 if unit == DOOR else 20  # it is root, for the folder is root's
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_has_watchdog_restart_and_limits(unit: Path) -> None:
    found = settings(unit)
    assert found["Type"] == ["notify"]
    assert found["Restart"] == ["on-failure"]
    assert found["StartLimitIntervalSec"] == ["0"]
    assert int(found["WatchdogSec"][0]) >= 60
    assert found["MemoryMax"][0].endswith("%")
    role = unit.stem.removeprefix("sojourn-")
    assert found["User"] == [f"sojourn-{role}"]
    # The final snapshot must not be cut off.
    assert int(found["TimeoutStopSec"][0]) >= 60


def test_broker_reloads_files_changed_by_the_door(tmp_path: Path) -> None:
    """The door can write only the fleet's folder; a separate unit reloads the broker."""
    found = settings(DOOR)
    assert found["ReadWritePaths"] == ["/etc/sojourn/fleet"]
    assert found["CapabilityBoundingSet"] == ["CAP_CHOWN CAP_FOWNER"]
    folder = DEPLOY / "coordinator"
    watched = settings(folder / "sojourn-broker-reload.path")
    assert watched["PathChanged"] == ["/etc/sojourn/fleet/broker/acl", "/etc/sojourn/fleet/broker/crl.pem"]
    names = [f"sojourn-broker-reload.{kind}" for kind in ("path", "service")]
    for name in names:
        shutil.copy(folder / name, tmp_path / name)
    command = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_mosquitto_drop_in_fits_the_debian_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "edge" / "mosquitto.service.d" / "sojourn.conf").read_text()
    folder = tmp_path / "mosquitto.service.d"
    folder.mkdir()
    program = shutil.which("true")
    (folder / "sojourn.conf").write_text(re.sub(r"(?m)^ExecStart=/usr/sbin/mosquitto", f"ExecStart={program}", text))
    (tmp_path / "mosquitto.service").write_text(DEBIAN_MOSQUITTO)
    command = ["systemd-analyze", "verify", str(tmp_path / "mosquitto.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/etc/sojourn/fleet/broker/mosquitto.conf" in text
