"""From a token to a trained model and on: a real broker, a real door, devices with separate keys.

Two commands on a device: `sojourn agent join TOKEN`, `sojourn agent run agent.toml`.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.certificate_renewal import check_renewal
from sojourn.brokers import invitations
from sojourn.brokers.local_broker import find_mosquitto
from sojourn.joining.identity import NodeIdentity
from tests.forked import Forked, sojourn
from tests.live.live_fleet import compile_here, job_text, split_digits
from tests.ports import free_ports, is_listening
from tests.there import there
from tests.waiting import LIMIT, wait_until


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
        # Started by root, mosquitto becomes a user that may not read a test's private folder.
        conf.write_text("user root\n" + (self.cloud / "broker" / "mosquitto.conf").read_text())
        with (self.folder / "broker.log").open("ab") as log:
            self.broker = subprocess.Popen([there(find_mosquitto()), "-c", str(conf)], stdout=log, stderr=log)
        self.wait(lambda: is_listening(self.local) and is_listening(self.certificate_port), "the broker")

    def restart_broker(self, member: str) -> int:
        """Restart the broker; return how often the member was connected before."""
        self.stop_broker()
        before = self.log(member).count("connected to")
        self.start_broker()
        return before

    def stop_broker(self) -> None:
        self.broker.terminate()
        self.broker.wait(LIMIT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, self.logs)

    def wait_for(self, name: str, words: str, count: int = 1) -> None:
        """Wait until a line is in a log at least `count` times."""
        self.wait(lambda: self.log(name).count(words) >= count, f"{words!r} in the log of {name}")

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2500:]}" for log in sorted(self.folder.glob("*.log")))

    def submit(self, text: str) -> None:
        compile_here(text)
        job = self.folder / "job.toml"
        job.write_text(text)
        self.wait_for("coordinator", "connected to")
        at = ["--broker", f"localhost:{self.local}", "--password-file", self.cloud / "operator.password"]
        self.sojourn("job", "submit", job, *at)

    def stop(self) -> None:
        for service in self.services.values():
            service.terminate()
        for service in self.services.values():
            if service.wait() is None:
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


def test_device_joins_by_token_trains_and_is_revoked_mid_visit(fleet: JoinedFleet, tmp_path: Path) -> None:
    fleet.wait_for("door", "the door is listening")
    token = fleet.fleet("invite", "--count", 2, "--prefix", "pi").split()[0]
    split_digits(tmp_path, ["pi-1", "pi-2"])
    for name in ("pi-1", "pi-2"):
        data = ["--data", tmp_path / f"{name}.npz", "--store", tmp_path / "stores" / name]
        fleet.serve(f"{name}-join", "agent", "join", token, "--file", tmp_path / name / "agent.toml", *data)
        fleet.wait_for(f"{name}-join", f"asked to join as {name}")
    output = fleet.sojourn("fleet", "accept", "--all", *fleet.at_fleet)
    assert "accepted: pi-1, pi-2" in output
    for name in ("pi-1", "pi-2"):
        assert fleet.services[f"{name}-join"].wait() == 0, fleet.logs()
        assert f"joined sojourn as {name}" in fleet.log(f"{name}-join")
        fleet.serve(name, "agent", "run", tmp_path / name / "agent.toml")
    fleet.submit(chain("first"))
    fleet.wait_for("coordinator", "first is done")
    assert "2 visits, 0 failed" in fleet.log("coordinator")
    _a_thief_has_the_device(fleet)
    _the_authority_is_replaced(fleet, tmp_path)


def _a_thief_has_the_device(fleet: JoinedFleet) -> None:
    """A device is stolen and revoked: it disappears at once from the broker, the roster, and the keys."""
    fleet.submit(chain("second", epochs=20_000))
    fleet.wait_for("coordinator", "second: 2 devices estimated")
    fleet.wait(lambda: _training(fleet) is not None, "a visit of the second job")
    thief = there(_training(fleet))
    gone = fleet.log("s1").count(f"{thief} is offline")
    output = fleet.sojourn("fleet", "revoke", thief, *fleet.at_fleet)
    assert f"the retained messages of {thief} are deleted from the broker" in output
    fleet.wait_for("s1", f"{thief} is offline", gone + 1)
    fleet.wait(lambda: "; retrying" in fleet.log(thief), "the end of its connection")
    keys = tomllib.loads((fleet.cloud / "coordinator" / "node-keys.toml").read_text())["keys"]
    assert sorted(keys) == sorted({"pi-1", "pi-2"} - {thief})
    fleet.sojourn(
        "job", "stop", "second", "--broker", f"localhost:{fleet.local}",
        "--password-file", fleet.cloud / "operator.password",
    )  # fmt: skip

    def is_refused() -> bool:  # a busy door may also hang up
        looked = check_renewal(fleet.folder / thief / "identity")
        return looked.warn and "was revoked or removed" in looked.text

    fleet.wait(is_refused, "the reason at the door")


def _training(fleet: JoinedFleet) -> str | None:
    """Return the device that has the second job's model, which it trains for minutes."""
    for name in ("pi-1", "pi-2"):
        log = fleet.log(name)
        if log.count("visit second") > log.count("trained second"):
            return name
    return None


def _the_authority_is_replaced(fleet: JoinedFleet, folder: Path) -> None:
    keys = tomllib.loads((fleet.cloud / "coordinator" / "node-keys.toml").read_text())["keys"]
    name = str(*keys)
    identity = folder / name / "identity"
    fleet.wait(lambda: _has_looked(fleet, name), "the first look of the running agent at the door")
    before, doors = (identity / "node.pem").read_bytes(), fleet.log("door").count("the door is listening")
    assert "renew at the door" in fleet.fleet("replace-authority")
    connected = fleet.restart_broker(name)
    fleet.wait_for("door", "the door is listening", doors + 1)

    def is_renewed() -> bool:  # by this look, by one before that a busy door answered late, or by the agent itself
        check_renewal(identity)
        return (identity / "node.pem").read_bytes() != before

    fleet.wait(is_renewed, "another certificate")
    fleet.wait_for(name, "connected to", connected + 1)
    assert (identity / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
    output = fleet.fleet("replace-authority", "--finish")
    assert "need a new token" not in output
    assert "need a new bundle (--renew): s1" in output
    connected = fleet.restart_broker(name)
    fleet.wait_for(name, "connected to", connected + 1)


def _has_looked(fleet: JoinedFleet, name: str) -> bool:
    """Return whether the agent has checked its certificate after its start; it does so again in an hour or later.

    Simultaneous checks of this test and the agent would count as two devices with the same keys.
    """
    seen = invitations.read(fleet.cloud).seen.get(name)
    joined = NodeIdentity(fleet.folder / name / "identity").joined()
    succeeded = seen is not None and seen.stamp == joined.stamp and joined.next is None
    return succeeded or any(words in fleet.log(name) for words in ("the door ", "the certificate "))
