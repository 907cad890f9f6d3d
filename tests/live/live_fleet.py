"""Real processes on a real Mosquitto; each can be killed and restarted."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.admin.backup import BLOBS, JOURNAL
from coordinator.console.operator import Operator
from coordinator.jobs.data import digits_split
from coordinator.jobs.settings import read_job
from coordinator.machine.coordinator import Coordinator
from coordinator.records import ENDED
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare
from sojourn.brokers import local_broker as brokers
from sojourn.brokers.acl import Members, acl_lines, retained_topics
from sojourn.brokers.configuration import local_conf
from sojourn.brokers.local_broker import start_broker
from sojourn.links.settings import LocalBroker
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import decoded
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import FolderBlobs
from sojourn.store.memory_blobs import MemoryBlobs
from tests.forked import Forked
from tests.live import witness
from tests.live.witness import Witness
from tests.ports import free_ports
from tests.there import there
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from sojourn.protocol.wire import JobView

FLEET = "live"


def split_digits(folder: Path, names: list[str]) -> None:
    """Split the digits unevenly: device k has mostly the classes k, k+1 and k+2."""
    x, y = digits_split(train=True)
    draw = np.random.default_rng(3)
    owner = (y + draw.integers(0, 3, len(y))) % len(names)
    for number, name in enumerate(names):
        np.savez(folder / f"{name}.npz", x=x[owner == number], y=y[owner == number])


def job_text(name: str, rounds: int = 2, *, devices: int = 4) -> str:
    return f"""
name = "{name}"
rounds = {rounds}
threads = 1
[model]
options = {{ hidden = [16] }}
[data]
test = "digits"
[fleet]
devices = {devices}
[arranger]
sets = 2
size = 2
[estimator]
epochs = 5
"""


def compile_here(text: str) -> None:
    """Compile a job's model in this process, where torch is loaded once for all tests; coordinators find the kit.

    Not for custom models, which every coordinator compiles itself.
    """
    if not read_job(text, "job").model.custom:
        prepare(PrepareJob("job", text), MemoryBlobs(), KitCache())


class LiveFleet:
    """A coordinator, edge servers and agents as processes; brokers too."""

    def __init__(
        self,
        folder: Path,
        sites: dict[str, list[str]],
        *,
        own_brokers: bool,
        max_packet: int = 1_000_000,
        data: dict[str, str] | None = None,
        flags: tuple[str, ...] = (),
        cloud_flags: tuple[str, ...] = (),
        edge_flags: Mapping[str, tuple[str, ...]] | None = None,
        homes: tuple[str, ...] = (),
        witnessed: bool = False,
    ):
        """`data` is each device's file; by default each gets a part of the digits.

        `flags` are for all agents, `cloud_flags` for the coordinator, `edge_flags` for edge servers by their names.
        `homes` are Home Assistant's names at the brokers. With `witnessed` a client counts all messages, from the first
        one on.
        """
        self.folder = folder
        self.sites = sites
        self._homes = homes
        self.processes: dict[str, Forked] = {}
        self.commands: dict[str, list[str]] = {}
        self._paused: set[str] = set()
        self._max_packet = max_packet
        self.brokers: dict[str, Any] = {"cloud": self._broker("cloud")}
        if data is None:
            split_digits(folder, [device for devices in sites.values() for device in devices])
        where = self._address("cloud")
        self._add("cloud", ["coordinator", "run", "--broker", where, *cloud_flags])
        for site, devices in sites.items():
            if own_brokers:
                self.brokers[site] = self._broker(site)
            at = self._address(site if own_brokers else "cloud")
            own = (edge_flags or {}).get(site, ())
            self._add(site, ["edge", "run", "--name", site, "--broker", at, "--cloud-broker", where, *own])
            for device in devices:
                mine = data[device] if data else str(folder / f"{device}.npz")
                self._add(device, ["agent", "run", "--name", device, "--broker", at, "--data", mine, *flags])
        self.witness = Witness(self.brokers.values()) if witnessed else None
        for name in self.commands:
            self.start(name)

    def _broker(self, name: str, port: int | None = None):
        devices = tuple(device for devices in self.sites.values() for device in devices)
        members = Members(
            devices=devices, edges=tuple(self.sites), clouds=("cloud",), operators=("operator",), homes=self._homes
        )
        cleared = [topic for device in devices for topic in retained_topics(FLEET, device, "device", members)]
        acl = acl_lines(FLEET, members, cleared) + witness.RULES
        settings = LocalBroker(port=port or free_ports(1)[0], kind="mosquitto", acl=acl, max_packet=self._max_packet)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(brokers, "local_conf", lambda *how: f"{local_conf(*how)}{witness.OFTEN}\n")
            return start_broker(settings, self.folder / f"broker-{name}")

    def _address(self, broker: str) -> str:
        return f"{self.brokers[broker].host}:{self.brokers[broker].port}"

    def _add(self, name: str, command: list[str]) -> None:
        store = str(self.folder / "stores" / name)
        self.commands[name] = [*command, "--fleet", FLEET, "--store", store]

    def start(self, name: str) -> None:
        self.processes[name] = Forked(self.commands[name], self.folder / f"{name}.log")

    def kill(self, name: str) -> None:
        self._paused.discard(name)
        self.processes[name].kill()

    def pause(self, name: str) -> None:
        """Stop a node without ending it: it stays connected, and does nothing until it is resumed."""
        os.kill(self.processes[name].pid, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """Let a paused node continue."""
        self._paused.discard(name)
        os.kill(self.processes[name].pid, signal.SIGCONT)

    def interrupt(self, name: str) -> int | None:
        self.processes[name].interrupt()
        return self.processes[name].wait()

    def restart_broker(self, name: str = "cloud") -> None:
        """Kill a broker with kill -9, and start a new one at the same port."""
        broker = self.brokers[name]
        subprocess.run(["kill", "-9", str(broker.pid)], check=True)
        broker.stop()
        self.brokers[name] = self._broker(name, broker.port)

    def operator(self) -> Operator:
        return Operator(self.brokers["cloud"].settings, fleet=FLEET, cloud="cloud")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, words: str, count: int = 1) -> None:
        """Wait until a line is in a node's log at least `count` times."""
        self.wait(lambda: self.log(name).count(words) >= count, f"{words!r} in the log of {name}")

    def wait(self, condition, what: str) -> None:
        wait_until(condition, what, self.logs)

    def logs(self) -> str:
        """Return the end of every node's log."""
        return "\n".join(f"--- {name}\n{self.log(name)[-2500:]}" for name in self.commands)

    def run(self, text: str, name: str):
        """Submit a job, wait for its end, and return the coordinator's view of it."""
        self.submit(text)
        return self.finish(name)

    def submit(self, text: str) -> None:
        compile_here(text)
        with self.operator() as operator:
            operator.jobs(timeout=LIMIT)  # the coordinator may still be starting
            operator.submit(text)

    def finish(self, name: str):
        """Wait for the end of a job; each of its rounds has the full timeout."""
        with self.operator() as operator:
            view = operator.job(name, timeout=LIMIT)
            while view.status not in ENDED:
                view = self._next_round(operator, name, view.round)
            return view

    def _next_round(self, operator: Operator, name: str, done: int) -> JobView:
        views: list[JobView] = []

        def has_moved() -> bool:
            views[:] = [operator.job(name, timeout=LIMIT)]
            return views[0].round > done or views[0].status in ENDED

        self.wait(has_moved, f"round {done + 1} or the end of {name}")
        return views[0]

    def wait_for_devices(self, *devices: str) -> None:
        """Wait until the coordinator has all these devices on its rosters, by default all of the fleet."""
        wanted = set(devices or [device for site in self.sites.values() for device in site])
        with self.operator() as operator:
            operator.jobs(timeout=LIMIT)  # the coordinator may still be starting
            self.wait(lambda: wanted <= {it.device for it in operator.devices()[0] if it.online}, "all devices")

    def model(self, name: str) -> NDArray[np.float32]:
        """Return a job's newest model, from the coordinator's store: an export would take another process."""
        store, coordinator = self.folder / "stores" / "cloud", Coordinator("cloud")
        with closing(sqlite3.connect(f"{(store / JOURNAL).as_uri()}?mode=ro", uri=True)) as journal:
            seq, snapshot = journal.execute("select seq, state from snapshot").fetchone() or (0, coordinator.snapshot())
            coordinator.restore(snapshot)
            for (record,) in journal.execute("select record from journal where seq > ? order by seq", (seq,)):
                coordinator.apply(decoded(record, coordinator.record_form))
        job = coordinator.state.jobs[name]
        blobs = FolderBlobs(store / BLOBS)
        kit = unpack_blob(blobs.read(there(job.kit).digest), Kit)
        return vectors.load(blobs, job.vectors["model"], kit.model)

    def stop(self) -> None:
        for name in list(self._paused):
            self.resume(name)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            if process.wait() is None:
                process.kill()
        if self.witness:
            self.witness.close()
        for broker in self.brokers.values():
            broker.stop()

    def trained(self) -> list[str]:
        """Return every trained visit, from the devices' logs."""
        lines = [line for site in self.sites.values() for device in site for line in self.log(device).splitlines()]
        return [line.partition("trained ")[2].partition(":")[0] for line in lines if "trained " in line]
