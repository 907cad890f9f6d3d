"""A whole fleet on this machine: a broker, a coordinator, edge servers and agents, each a process of its own."""

from __future__ import annotations

import shutil
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from rich.table import Table
from rich.text import Text

from coordinator.console.following import follow
from coordinator.console.operator import Operator
from coordinator.console.watching import show, show_rounds
from coordinator.jobs.data import digits_split
from fleet_sim.console.split_view import bars
from fleet_sim.datasets.partition import dirichlet
from fleet_sim.demo.job import demo_job
from fleet_sim.demo.processes import Processes
from fleet_sim.demo.release import PUBLIC, make_key, ship
from sojourn.brokers.acl import Members, acl_lines
from sojourn.brokers.run import find_mosquitto, start_broker
from sojourn.errors import JobError, LinkError
from sojourn.figures import percent
from sojourn.links.settings import LocalBroker
from sojourn.toml import dumps

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import Console

    from coordinator.console.following import JobProgress
    from sojourn.brokers.run import Broker

FLEET, CLOUD, OPERATOR, JOB = "demo", "cloud", "operator", "demo"
START_SECONDS = 60.0
STAGGER = 0.15
"""Seconds between two agents, so that a small machine is not asked to start them all at once."""
SHOWN = 12


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """What a person can choose of the demo."""

    devices: int
    edges: int
    rounds: int
    target: float | None
    strategy: str
    alpha: float
    seed: int
    brokers: Literal["one", "per-site"]

    @property
    def device_names(self) -> list[str]:
        """The devices' names."""
        return [f"device-{number}" for number in range(1, self.devices + 1)]

    @property
    def site_names(self) -> list[str]:
        """The edge servers' names."""
        return [f"site-{number}" for number in range(1, self.edges + 1)]

    def site_of(self, device: int) -> str:
        """The site whose broker a device uses."""
        return self.site_names[device % self.edges]


def run(demo: Demo, folder: Path, console: Console) -> None:
    """Run all of it, from dealing out the data to a model that all devices serve; all is written below `folder`."""
    began = time.monotonic()
    who = f"{demo.devices} devices at {demo.edges} sites"
    console.print(f"[bold]{who} train one model.[/] The model travels; the data stays.")
    parts = deal_out(demo, folder)
    make_key(folder)
    processes = Processes(folder)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, processes.interrupt)
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(start_demo_broker(demo, name, folder)) for name in _broker_names(demo)}
        _show_fleet(demo, brokers, parts, console)
        stack.enter_context(processes)
        start_servers(demo, brokers, processes, folder)
        settings = _at(brokers, CLOUD).settings
        operator = stack.enter_context(Operator(settings, fleet=FLEET, cloud=CLOUD, name=OPERATOR))
        await_coordinator(operator, processes)
        operator.submit(job_file(demo, folder))
        start_agents(demo, brokers, processes, folder)
        last = show(follow(operator, JOB, processes.check), console)
        _show_end(last, console)
        release = ship(operator, JOB, folder, console, processes.check)
        model = folder / "digits.onnx"
        model.write_bytes(release.graph)
        _try_out(model, console)
        console.print(f"[dim]Ending {len(processes)} processes ...[/]")
    console.print(f"That took {time.monotonic() - began:.0f} seconds.")


# --- what is there before anything runs


def deal_out(demo: Demo, folder: Path) -> list[NDArray[np.int64]]:
    """One NPZ file for each device; returns the labels of each."""
    x, y = digits_split(train=True)
    parts = dirichlet(y, demo.devices, demo.alpha, demo.seed)
    for name, part in zip(demo.device_names, parts, strict=True):
        np.savez(folder / f"{name}.npz", x=x[part], y=y[part])
    return [y[part] for part in parts]


def _broker_names(demo: Demo) -> list[str]:
    return [CLOUD, *demo.site_names] if demo.brokers == "per-site" else [CLOUD]


def start_demo_broker(demo: Demo, name: str, folder: Path) -> Broker:
    """The broker of the cloud or of a site, which lets only the demo's members speak."""
    # All names are known, so the broker can enforce who speaks to whom; amqtt knows no such rules.
    members = Members(
        devices=tuple(demo.device_names), edges=tuple(demo.site_names), clouds=(CLOUD,), operators=(OPERATOR,)
    )
    acl = acl_lines(FLEET, members) if find_mosquitto() else None
    return start_broker(LocalBroker(acl=acl), folder / f"broker-{name}")


def _at(brokers: dict[str, Broker], name: str) -> Broker:
    """The broker of a site, which may be that of the cloud."""
    return brokers.get(name, brokers[CLOUD])


def job_file(demo: Demo, folder: Path) -> str:
    """The job's text, which stands in the folder, too."""
    text = dumps(demo_job(JOB, demo))
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return text


# --- processes


def start_servers(demo: Demo, brokers: dict[str, Broker], processes: Processes, folder: Path) -> None:
    """Start the coordinator and the edge servers."""
    cloud = _address(_at(brokers, CLOUD))
    _start(
        processes, folder, "coordinator", CLOUD, {"broker": cloud, "operators": [OPERATOR], "release_key_file": PUBLIC}
    )
    for name in demo.site_names:
        _start(processes, folder, "edge", name, {"broker": _address(_at(brokers, name)), "cloud_broker": cloud})


def start_agents(demo: Demo, brokers: dict[str, Broker], processes: Processes, folder: Path) -> None:
    """Start the devices, one after another."""
    for number, name in enumerate(demo.device_names):
        broker = _address(_at(brokers, demo.site_of(number)))
        settings = {"threads": 1, "broker": broker, "data": {"path": f"{name}.npz"}, "shares": ["class-counts"]}
        settings["release"] = {"key_file": PUBLIC}
        _start(processes, folder, "agent", name, settings)
        time.sleep(STAGGER)


def _start(processes: Processes, folder: Path, role: str, name: str, settings: dict[str, Any]) -> None:
    """Write a node's settings and start it as anybody would: `sojourn <role> run <file>`."""
    file = folder / f"{name}.toml"
    file.write_text(dumps({"name": name, "fleet": FLEET, "store": f"{name}-store", **settings}), encoding="utf-8")
    processes.start(name, role, "run", str(file))


def _address(broker: Broker) -> dict[str, Any]:
    own: dict[str, Any] = msgspec.to_builtins(broker.settings)
    return {key: own[key] for key in ("host", "port", "protocol", "max_payload") if own[key] is not None}


def await_coordinator(operator: Operator, processes: Processes) -> None:
    """Wait until the coordinator answers; what has ended meanwhile, or a minute without an answer, is an error."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        processes.check()
        try:
            operator.jobs(patience=2.0)
        except LinkError:
            if time.monotonic() > deadline:
                raise
        else:
            return


# --- what a person sees


def _show_fleet(demo: Demo, brokers: dict[str, Broker], parts: list[NDArray[np.int64]], console: Console) -> None:
    where = ", ".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    kind = brokers[CLOUD].kind
    console.print(f"Each is a process of its own; they speak MQTT through {kind} at {where}.", highlight=False)
    console.print(
        f"Every device has its own share of {sum(map(len, parts)):,} images of digits, and most lack some digits "
        f"(Dirichlet, alpha {demo.alpha:g}):",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2), header_style="dim")
    table.add_column("device")
    table.add_column("images", justify="right")
    table.add_column("0123456789")
    for name, labels in zip(demo.device_names, parts, strict=True):
        table.add_row(name, str(len(labels)), Text(bars(np.bincount(labels, minlength=10)), style="cyan"))
    console.print(table)
    if any(not len(labels) for labels in parts):
        console.print("A device without images declines its visits, and the tours go on without it.")
    console.print("The coordinator now compiles the model into graphs that small devices can train: a moment, please.")


def _show_end(last: JobProgress, console: Console) -> None:
    show_rounds(last, console)
    if last.view.status != "done":
        raise JobError(f"the job is {last.view.status}: {last.view.detail}")
    console.print(f"Done: {last.view.detail}.", highlight=False, markup=False)


def _try_out(model: Path, console: Console) -> None:
    """Show that the exported file works by itself."""
    import onnxruntime  # noqa: PLC0415  # takes a second, at the very end

    x, y = digits_split(train=False)
    session = onnxruntime.InferenceSession(model)
    answers = np.argmax(session.run(None, {session.get_inputs()[0].name: x})[0], axis=1)
    some = np.linspace(0, len(y) - 1, SHOWN).astype(int)
    console.print(f"The model is in {model}, as plain ONNX.", highlight=False, soft_wrap=True)
    console.print(f"  {SHOWN} digits that no device has seen: {' '.join(map(str, y[some]))}", highlight=False)
    console.print(f"  what onnxruntime says with it:     {' '.join(map(str, answers[some]))}", highlight=False)
    console.print(f"  right on all {len(y)} of them: {percent(float(np.mean(answers == y)))}", highlight=False)


def tidy(folder: Path) -> None:
    """Leave the model, its release and the job file; the rest has served."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("digits.onnx", "digits-1.release", "job.toml"):
            path.unlink()
