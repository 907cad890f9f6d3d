"""The demo: a broker, a coordinator, edge servers and agents as local processes, with a job and a release."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.console.job_progress import JobProgress, follow
from coordinator.console.live_view import show, show_rounds
from coordinator.console.operator import Operator
from coordinator.console.release_tables import device_table, line_summary
from coordinator.jobs.data import digits_split
from coordinator.releases.file import ReleaseFile, write_release
from coordinator.releases.making import Wanted
from coordinator.releases.orders import orders_for
from coordinator.strategies import Strategy, named
from fleet_sim.console.split_view import bars
from fleet_sim.datasets.partition import dirichlet
from fleet_sim.demo.processes import Processes
from sojourn.brokers.acl import Members, acl_lines
from sojourn.brokers.local_broker import Broker, find_mosquitto, start_broker
from sojourn.errors import JobError, LinkError
from sojourn.links.settings import LocalBroker
from sojourn.parts import (
    CluSampArranger,
    Elmy,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    OneShot,
    PhasedRing,
    RandomArranger,
    Ring,
    SequentialToParallel,
    VisitArranger,
)
from sojourn.protocol.release import HealthRules
from sojourn.protocol.signing import Signer
from sojourn.settings import dumps
from sojourn.text import percent

TRAINING = {"epochs": 2, "batch": 16, "lr": 0.05}
MODEL_POOL_TRAINING = {"epochs": 5, "batch": 16, "lr": 0.003}
MODEL_POOL = {"models": 3, "warmup": 5}
WARMUP = 5
"""Epochs in which MetaFed's devices train alone."""


def demo_job(name: str, demo: Demo) -> dict[str, Any]:
    """Return the demo's job file as tables."""
    strategy = named(demo.strategy, "--strategy")
    has_model_pool = isinstance(strategy.objective, Elmy)
    job: dict[str, Any] = {
        "name": name,
        "strategy": demo.strategy,
        "seed": demo.seed,
        "threads": 1,
        "model": {"name": "mlp"},
        "data": {"test": "digits"},
        "fleet": {"devices": demo.devices},
        "training": MODEL_POOL_TRAINING if has_model_pool else TRAINING,
        **({"objective": MODEL_POOL} if has_model_pool else {}),
        **_arranger(strategy, demo),
        **_schedule(strategy, demo),
    }
    if demo.target:
        job["target"] = demo.target
    return job


def _arranger(strategy: Strategy, demo: Demo) -> dict[str, Any]:
    share = max(1, demo.devices // demo.edges)
    match strategy.arranger:
        case VisitArranger() | HierClusterArranger():
            return {"arranger": {"sets": demo.edges, "size": share}}
        case RandomArranger(size=size) if size:
            return {"arranger": {"sets": demo.edges, "size": share}}
        case RandomArranger() | IcgArranger():
            return {"arranger": {"sets": demo.edges}}
        case FedCatArranger() | CluSampArranger():
            return {"arranger": {"sets": max(1, demo.devices // 2)}}
        case FedSeqArranger():
            return {"arranger": {"max_devices": share}}
        case _:
            return {}


def _schedule(strategy: Strategy, demo: Demo) -> dict[str, Any]:
    match strategy.schedule:
        case Ring() if strategy.schedule.trips > 1:
            return {"schedule": {"trips": min(demo.rounds, strategy.schedule.trips)}}
        case PhasedRing():
            return {"schedule": {"trips": max(1, demo.rounds - 2)}, "objective": {"warmup": WARMUP}}
        case Ring() | OneShot():
            return {}
        case SequentialToParallel():
            return {"schedule": {"beta": demo.edges}, "rounds": demo.rounds}
        case _:
            return {"rounds": demo.rounds}


LINE = "digits"
STAGES = (0.25, 1.0)
RULES = HealthRules(soak=0.5, timeout=60.0)
KEY, PUBLIC = "release.key", "release.pub"
_LOOK = 0.2


def make_key(folder: Path) -> None:
    """Create the key that signs the release, and its public part for the devices."""
    signer = Signer.generate(folder / KEY)
    (folder / PUBLIC).write_text(f"{signer.public}\n", encoding="utf-8")


def ship(operator: Operator, job: str, folder: Path, console: Console, check: Callable[[], None]) -> ReleaseFile:
    """Create a release of the job's model and roll it out to all devices, in two stages."""
    console.print("Now the model returns to the devices: a signed release, first for a quarter of them, then for all.")
    release = operator.make_release(job, Wanted(LINE, 1))
    write_release(folder / f"{LINE}-1.release", release)
    forward, back = orders_for(release, None, operator.fleet, Signer.load(folder / KEY))
    view = operator.rollout(forward, back, release, STAGES, RULES)
    while view.status in ("running", "rolling-back"):
        check()
        time.sleep(_LOOK)
        view = operator.releases(LINE)[0]
    console.print(device_table(view))
    if view.status != "done":
        raise JobError(f"the rollout failed: {line_summary(view)}")
    return release


FLEET, CLOUD, OPERATOR, JOB = "demo", "cloud", "operator", "demo"
START_SECONDS = 60.0
STAGGER = 0.15
"""Seconds between the starts of two agents, to limit the load on a small machine."""
SHOWN = 12


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the demo."""

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
        """Return the site whose broker a device uses."""
        return self.site_names[device % self.edges]


def run(demo: Demo, folder: Path, console: Console) -> None:
    """Run the whole demo, from splitting the data to a model served by all devices; all files are below `folder`."""
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
        console.print(f"[dim]Stopping {len(processes)} processes ...[/]")
    console.print(f"That took {time.monotonic() - began:.0f} seconds.")


# --- preparation


def deal_out(demo: Demo, folder: Path) -> list[NDArray[np.int64]]:
    """Write one NPZ file per device; return the labels of each."""
    x, y = digits_split(train=True)
    parts = dirichlet(y, demo.devices, demo.alpha, demo.seed)
    for name, part in zip(demo.device_names, parts, strict=True):
        np.savez(folder / f"{name}.npz", x=x[part], y=y[part])
    return [y[part] for part in parts]


def _broker_names(demo: Demo) -> list[str]:
    return [CLOUD, *demo.site_names] if demo.brokers == "per-site" else [CLOUD]


def start_demo_broker(demo: Demo, name: str, folder: Path) -> Broker:
    """Start the broker of the cloud or of a site, which accepts only the demo's members."""
    # All names are known, so the broker can enforce access rules; amqtt has no such rules.
    members = Members(
        devices=tuple(demo.device_names), edges=tuple(demo.site_names), clouds=(CLOUD,), operators=(OPERATOR,)
    )
    acl = acl_lines(FLEET, members) if find_mosquitto() else None
    return start_broker(LocalBroker(acl=acl), folder / f"broker-{name}")


def _at(brokers: dict[str, Broker], name: str) -> Broker:
    """Return the broker of a site, which may be that of the cloud."""
    return brokers.get(name, brokers[CLOUD])


def job_file(demo: Demo, folder: Path) -> str:
    """Write the job file to the folder and return its text."""
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
    """Write a node's settings and start it with the regular command: `sojourn <role> run <file>`."""
    file = folder / f"{name}.toml"
    file.write_text(dumps({"name": name, "fleet": FLEET, "store": f"{name}-store", **settings}), encoding="utf-8")
    processes.start(name, role, "run", str(file))


def _address(broker: Broker) -> dict[str, Any]:
    own: dict[str, Any] = msgspec.to_builtins(broker.settings)
    return {key: own[key] for key in ("host", "port", "protocol", "max_payload") if own[key] is not None}


def await_coordinator(operator: Operator, processes: Processes) -> None:
    """Wait until the coordinator answers; raise an error if a process ends or after a minute."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        processes.check()
        try:
            operator.jobs(timeout=2.0)
        except LinkError:
            if time.monotonic() > deadline:
                raise
        else:
            return


# --- output for the user


def _show_fleet(demo: Demo, brokers: dict[str, Broker], parts: list[NDArray[np.int64]], console: Console) -> None:
    where = ", ".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    kind = brokers[CLOUD].kind
    console.print(f"Each is a separate process; they communicate over MQTT through {kind} at {where}.", highlight=False)
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
        console.print("A device without images declines its visits, and the tours continue without it.")
    console.print(
        "The coordinator now compiles the model into graphs that small devices can train. This takes a moment."
    )


def _show_end(last: JobProgress, console: Console) -> None:
    show_rounds(last, console)
    if last.view.status != "done":
        raise JobError(f"the job is {last.view.status}: {last.view.detail}")
    console.print(f"Done: {last.view.detail}.", highlight=False, markup=False)


def _try_out(model: Path, console: Console) -> None:
    """Show that the exported file works without Sojourn."""
    import onnxruntime  # noqa: PLC0415  # slow, and only needed at the end

    x, y = digits_split(train=False)
    session = onnxruntime.InferenceSession(model)
    predictions = np.argmax(session.run(None, {session.get_inputs()[0].name: x})[0], axis=1)
    some = np.linspace(0, len(y) - 1, SHOWN).astype(int)
    console.print(f"The model is in {model}, as plain ONNX.", highlight=False, soft_wrap=True)
    console.print(f"  {SHOWN} digits that no device has seen:  {' '.join(map(str, y[some]))}", highlight=False)
    console.print(f"  predictions with onnxruntime alone:   {' '.join(map(str, predictions[some]))}", highlight=False)
    console.print(f"  accuracy on all {len(y)} of them: {percent(float(np.mean(predictions == y)))}", highlight=False)


def tidy(folder: Path) -> None:
    """Delete all files except the model, its release and the job file."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("digits.onnx", "digits-1.release", "job.toml"):
            path.unlink()
