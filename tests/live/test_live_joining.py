"""From a token to a trained model and on: a real broker, a real door, devices with keys of their own.

Two commands on a device: `sojourn agent join TOKEN`, `sojourn agent run agent.toml`.
"""

from __future__ import annotations

import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.joining.renewals import look_outside
from sojourn.brokers.run import find_mosquitto
from tests.forked import Forked, sojourn
from tests.live.live_fleet import compile_here, job_text, split_digits
from tests.ports import free_ports
from tests.there import there

PATIENCE = 120.0


class JoinedFleet:
    """The commands and processes of one cloud machine and two devices."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cloud = folder, folder / "cloud"
        self.services: dict[str, Forked] = {}
        self.certificate_port, self.local, self.door = free_ports(3)
        ports = ["--certificate-port", self.certificate_port, "--local-port", self.local, "--door-port", self.door]
        self.sojourn("fleet", "init", "--host", "localhost", *ports, "--fleet-folder", self.cloud)
        self.fleet("add-edge", "s1", "--output", folder / "s1.tar.gz")
        (folder / "s1").mkdir()
        subprocess.run(["tar", "xzf", str(folder / "s1.tar.gz"), "-C", str(folder / "s1")], check=True)
        settings = self.cloud / "coordinator" / "coordinator.toml"
        settings.write_text('signed_hops = "require"\n' + settings.read_text())
        self.start_broker()
        self.serve("coordinator", "coordinator", "run", settings, "--store", folder / "stores" / "cloud")
        self.serve("s1", "edge", "run", folder / "s1" / "edge.toml", "--store", folder / "stores" / "s1")
        self.serve("door", "fleet", "door", "--host", "127.0.0.1", *self.at_fleet)

    @property
    def at_fleet(self) -> list[object]:
        return ["--fleet-folder", self.cloud, "--reload", f"kill -HUP {self.broker.pid}"]

    def sojourn(self, *arguments: object) -> str:
        return sojourn(*map(str, arguments))

    def fleet(self, command: str, *arguments: object) -> str:
        return self.sojourn("fleet", command, *arguments, "--fleet-folder", self.cloud)

    def serve(self, name: str, *arguments: object) -> None:
        self.services[name] = Forked([*map(str, arguments)], self.folder / f"{name}.log")

    def start_broker(self) -> None:
        conf = self.folder / "broker.conf"
        # As root mosquitto becomes a user who may not read a test's private folder.
        conf.write_text("user root\n" + (self.cloud / "broker" / "mosquitto.conf").read_text())
        with (self.folder / "broker.log").open("ab") as log:
            self.broker = subprocess.Popen([there(find_mosquitto()), "-c", str(conf)], stdout=log, stderr=log)

    def restart_broker(self) -> None:
        self.stop_broker()
        self.start_broker()

    def stop_broker(self) -> None:
        self.broker.terminate()
        self.broker.wait(30)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not met():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2500:]}" for log in sorted(self.folder.glob("*.log")))

    def submit(self, text: str) -> None:
        compile_here(text)
        job = self.folder / "job.toml"
        job.write_text(text)
        at = ["--broker", f"localhost:{self.local}", "--password-file", self.cloud / "operator.password"]
        self.sojourn("job", "submit", job, *at)

    def stop(self) -> None:
        for service in self.services.values():
            service.terminate()
        for service in self.services.values():
            if service.wait(30) is None:
                service.kill()
        self.stop_broker()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[JoinedFleet]:
    made = JoinedFleet(tmp_path)
    yield made
    made.stop()


def chain(name: str, *, epochs: int = 1) -> str:
    text = job_text(name, rounds=1, devices=2).replace("sets = 2", "sets = 1")
    return text.replace("[estimator]\nepochs = 5", f"[estimator]\nepochs = 1\n[training]\nepochs = {epochs}")


def test_from_a_token_to_a_model_and_to_revocation_in_the_middle_of_a_visit(fleet: JoinedFleet, tmp_path: Path) -> None:
    fleet.wait(lambda: "the door is open" in fleet.log("door"))
    token = fleet.fleet("invite", "--count", 2, "--prefix", "pi").split()[0]
    split_digits(tmp_path, ["pi-1", "pi-2"])
    for name in ("pi-1", "pi-2"):
        data = ["--data", tmp_path / f"{name}.npz", "--store", tmp_path / "stores" / name]
        fleet.serve(f"{name}-join", "agent", "join", token, "--file", tmp_path / name / "agent.toml", *data)
        fleet.wait(lambda name=name: f"asked to join as {name}" in fleet.log(f"{name}-join"))  # type: ignore[misc]
    said = fleet.sojourn("fleet", "accept", "--all", *fleet.at_fleet)
    assert "accepted: pi-1, pi-2" in said
    for name in ("pi-1", "pi-2"):
        assert fleet.services[f"{name}-join"].wait(60) == 0, fleet.logs()
        assert f"joined sojourn as {name}" in fleet.log(f"{name}-join")
        fleet.serve(name, "agent", "run", tmp_path / name / "agent.toml")
    fleet.submit(chain("first"))
    fleet.wait(lambda: "first is done" in fleet.log("coordinator"))
    assert "2 visits, 0 failed" in fleet.log("coordinator")
    _a_thief_has_the_device(fleet)
    _the_authority_is_replaced(fleet, tmp_path)


def _a_thief_has_the_device(fleet: JoinedFleet) -> None:
    """It trains for minutes; it is revoked, and is gone at once: from the broker, the roster, and the keys."""
    fleet.submit(chain("second", epochs=20_000).replace("size = 2", "size = 2\n[tours]\nlease = 3.0\nspares = 0"))
    fleet.wait(lambda: any("visit second round 1" in fleet.log(name) for name in ("pi-1", "pi-2")))
    fleet.wait(lambda: _training(fleet) is not None)
    thief = there(_training(fleet))
    said = fleet.sojourn("fleet", "revoke", thief, *fleet.at_fleet)
    assert f"what the broker kept of {thief} is cleared" in said
    fleet.wait(lambda: f"{thief} is gone" in fleet.log("s1") or f"{thief} lost" in fleet.log("s1"))
    fleet.wait(lambda: "refused" in fleet.log(thief) or "trying again" in fleet.log(thief))
    keys = tomllib.loads((fleet.cloud / "coordinator" / "node-keys.toml").read_text())["keys"]
    assert sorted(keys) == sorted({"pi-1", "pi-2"} - {thief})
    fleet.sojourn(
        "job", "stop", "second", "--broker", f"localhost:{fleet.local}",
        "--password-file", fleet.cloud / "operator.password",
    )  # fmt: skip
    looked = look_outside(fleet.folder / thief / "identity")
    assert looked.warn
    assert "was revoked, or removed" in looked.text


def _training(fleet: JoinedFleet) -> str | None:
    """Who has the second job's model in its training phase, by the edge server's journal of asks."""
    for name in ("pi-1", "pi-2"):
        log = fleet.log(name)
        if log.count("visit second") > log.count("trained second"):
            return name
    return None


def _the_authority_is_replaced(fleet: JoinedFleet, folder: Path) -> None:
    keys = tomllib.loads((fleet.cloud / "coordinator" / "node-keys.toml").read_text())["keys"]
    (name,) = keys
    identity = folder / name / "identity"
    assert "learn it at the door" in fleet.fleet("replace-authority")
    before = (identity / "node.pem").read_bytes()
    fleet.restart_broker()
    time.sleep(2.5)  # until the door has seen the new files
    fleet.wait(lambda: look_outside(identity).text == "the certificate was renewed")
    assert (identity / "node.pem").read_bytes() != before
    assert (identity / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
    said = fleet.fleet("replace-authority", "--finish")
    assert f"{name}: need new tokens" not in said
    assert "s1: need new bundles" in said
    connected = fleet.log(name).count("connected to")
    fleet.restart_broker()
    fleet.wait(lambda: fleet.log(name).count("connected to") > connected)
