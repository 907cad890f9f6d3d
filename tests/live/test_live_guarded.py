"""From `sojourn fleet init` to a trained model, only with the files of the commands: two guarded brokers, TLS."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from sojourn.brokers.local_broker import find_mosquitto
from tests.forked import Forked, sojourn
from tests.live.live_fleet import compile_here, job_text, split_digits
from tests.ports import free_ports
from tests.there import there
from tests.waiting import LIMIT, wait_until


class Guarded:
    """Commands and processes of three machines, each a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.brokers: list[subprocess.Popen[bytes]] = []
        self.services: list[Forked] = []

    def sojourn(self, *arguments: object) -> str:
        return sojourn(*map(str, arguments))

    def serve(self, name: str, *arguments: object) -> None:
        store = self.folder / "stores" / name
        self.services.append(Forked([*map(str, arguments), "--store", str(store)], self.folder / f"{name}.log"))

    def broker(self, name: str, fleet: Path) -> None:
        conf = self.folder / f"{name}.conf"
        # Started by root, mosquitto becomes a user that may not read a test's private folder.
        conf.write_text("user root\n" + (fleet / "broker" / "mosquitto.conf").read_text())
        with (self.folder / f"{name}.log").open("wb") as log:
            self.brokers.append(subprocess.Popen([there(find_mosquitto()), "-c", str(conf)], stdout=log, stderr=log))

    def unpack(self, bundle: Path) -> Path:
        folder = bundle.with_suffix(".d")
        with tarfile.open(bundle) as tar:
            tar.extractall(folder, filter="data")
        return folder

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))


@pytest.fixture
def guarded(tmp_path: Path):
    made = Guarded(tmp_path)
    yield made
    for service in made.services:
        service.terminate()
        service.wait()
    for broker in made.brokers:
        broker.terminate()
        broker.wait(LIMIT)


def test_documented_commands_set_up_a_secure_fleet_that_trains(guarded: Guarded, tmp_path: Path) -> None:
    cloud, site = tmp_path / "cloud", tmp_path / "site"
    ports = free_ports(5)
    ours = ["--certificate-port", ports[0], "--local-port", ports[1]]
    guarded.sojourn("fleet", "init", "--host", "localhost", "--fleet-folder", cloud, *ours)
    bundle = tmp_path / "s1.tar.gz"
    guarded.sojourn("fleet", "add-edge", "s1", "--fleet-folder", cloud, "--output", bundle)
    # The site uses passwords; the cloud uses certificates, and passwords only on its own machine.
    theirs = ["--password-port", ports[2], "--certificate-port", ports[3], "--local-port", ports[4]]
    folder = ["--fleet-folder", site / "fleet"]
    guarded.sojourn("edge", "init", "--bundle", bundle, "--host", "localhost", *folder, *theirs)
    for name, kind in (("pi-1", ["--password"]), ("pi-2", [])):
        output = tmp_path / f"{name}.tar.gz"
        guarded.sojourn("fleet", "add-device", name, *kind, "--fleet-folder", site / "fleet", "--output", output)
    guarded.broker("cloud-broker", cloud)
    guarded.broker("site-broker", site / "fleet")
    guarded.serve("coordinator", "coordinator", "run", cloud / "coordinator" / "coordinator.toml")
    guarded.serve("s1", "edge", "run", site / "edge.toml")
    split_digits(tmp_path, ["pi-1", "pi-2"])
    for name in ("pi-1", "pi-2"):
        device = guarded.unpack(tmp_path / f"{name}.tar.gz")
        guarded.serve(name, "agent", "run", device / "agent.toml", "--data", tmp_path / f"{name}.npz")
    job = tmp_path / "job.toml"
    text = job_text("job", rounds=1, devices=2).replace("sets = 2", "sets = 1")
    compile_here(text)
    job.write_text(text)
    at: list[object] = ["--broker", f"localhost:{ports[1]}", "--password-file", cloud / "operator.password"]
    log = tmp_path / "coordinator.log"
    wait_until(lambda: "connected to" in log.read_text(), "the coordinator", guarded.logs)
    guarded.sojourn("job", "submit", job, *at)
    wait_until(lambda: "job is done" in log.read_text(), "the end of the job", guarded.logs)
    assert "2 visits, 0 failed" in log.read_text()
    _the_model_goes_back(guarded, tmp_path, cloud, at)


def _the_model_goes_back(guarded: Guarded, folder: Path, cloud: Path, at: list[object]) -> None:
    """Make, sign, roll out and query a release of the trained model."""
    release = folder / "digits-1.release"
    made = guarded.sojourn("release", "create", "job", "--line", "digits", "-o", release, *at)
    assert "digits" in made
    assert "torch" in guarded.sojourn("release", "show", release)
    output = guarded.sojourn(
        "release", "rollout", release, "--stages", "50%,100%", "--soak", 0, "--watch",
        "--key", cloud / "release.key", *at,
    )  # fmt: skip
    assert "digits 1 is done; 2 serving" in output
    table = guarded.sojourn("release", "status", "digits", *at)
    assert table.count("serving") == 3  # the summary, and one row for each device
    store = folder / "stores" / "pi-1"
    answers = guarded.sojourn("agent", "predict", "digits", folder / "pi-1.npz", "--store", store)
    assert len(answers.splitlines()) > 10
    assert "digits 1" in guarded.sojourn("release", "status", *at)
    undone = guarded.sojourn("release", "rollback", "digits", "--watch", *at)
    assert "digits 1 is rolled-back; 2 withdrawn; rollback by operator" in undone
