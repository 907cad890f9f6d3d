"""The example with real processes: a coordinator, an edge server and agents over a Mosquitto on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from coordinator.console.job_progress import follow
from coordinator.console.live_view import show
from coordinator.console.operator import Operator
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.demo.fleet import await_coordinator
from fleet_sim.demo.processes import Processes
from sojourn.brokers.acl import Members, acl_lines
from sojourn.brokers.local_broker import start_broker
from sojourn.links.settings import LocalBroker
from sojourn.settings import dumps

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from coordinator.console.job_progress import JobProgress
    from fleet_sim.settings import Simulation

FLEET, CLOUD, SITE, OPERATOR = "office", "cloud", "site-1", "operator"


def run_live(simulation: Simulation, job: str, folder: Path, console: Console) -> tuple[JobProgress, bytes]:
    """Run `job.toml` on the fleet that `simulation` describes; returns how it ended, and its model as ONNX."""
    devices = _deal_out(simulation, folder)
    members = Members(devices=tuple(devices), edges=(SITE,), clouds=(CLOUD,), operators=(OPERATOR,))
    with ExitStack() as stack:
        settings = LocalBroker(kind="mosquitto", acl=acl_lines(FLEET, members))
        broker = stack.enter_context(start_broker(settings, folder / "broker"))
        console.print(f"{len(devices)} agents, an edge server and a coordinator use MQTT at port {broker.port}.")
        processes = stack.enter_context(Processes(folder))
        own = msgspec.to_builtins(broker.settings)
        address = {key: own[key] for key in ("host", "port", "protocol", "max_payload") if own[key] is not None}
        _start(processes, folder, "coordinator", CLOUD, {"broker": address, "operators": [OPERATOR]})
        _start(processes, folder, "edge", SITE, {"broker": address, "cloud_broker": address})
        for name, file in devices.items():
            _start(processes, folder, "agent", name, {"threads": 1, "broker": address, "data": {"path": str(file)}})
        operator = stack.enter_context(Operator(broker.settings, fleet=FLEET, cloud=CLOUD, name=OPERATOR))
        await_coordinator(operator, processes)
        operator.submit((folder / "job.toml").read_text(encoding="utf-8"))
        last = show(follow(operator, job, processes.check), console)
        model = operator.export(job)[0] if last.view.status == "done" else b""
    return last, model


def _deal_out(simulation: Simulation, folder: Path) -> dict[str, Path]:
    """A file for each device, with the samples that the simulation gives its namesake."""
    samples = load(simulation.fleet.data)
    parts = split(simulation.split, samples, simulation.fleet.devices, simulation.read().seed)
    files = {name: folder / f"{name}.npz" for name in simulation.fleet.names}
    for file, part in zip(files.values(), parts, strict=True):
        np.savez(file, x=samples.x_train[part], y=samples.y_train[part])
    return files


def _start(processes: Processes, folder: Path, role: str, name: str, settings: dict[str, Any]) -> None:
    file = folder / f"{name}.toml"
    file.write_text(dumps({"name": name, "fleet": FLEET, "store": f"{name}-store", **settings}), encoding="utf-8")
    processes.start(name, role, "run", str(file))
