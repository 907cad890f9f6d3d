"""Fine-tune a MobileNet on photographs by domain with VISIT: simulated, or by real processes over Mosquitto."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from coordinator.console.live_view import show
from coordinator.jobs.model import exported_model
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare
from edge_agent.training.data_watch import FeatureFolder
from edge_agent.training.features import FeatureFiles
from edge_agent.training.messages import Train, Warm
from edge_agent.training.trainer import Trainer
from examples.office.live import run_live
from examples.office.photographs import photographs
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.run import SimulationRun
from fleet_sim.settings import Simulation, read_simulation
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.data.source import DataSettings
from sojourn.errors import SojournError
from sojourn.model import vectors
from sojourn.parts import Sgd
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Task, VisitId
from sojourn.settings import dumps
from sojourn.store.blobs import FolderBlobs

if TYPE_CHECKING:
    from coordinator.console.job_progress import JobProgress
    from coordinator.records import JobCompiled

JOB = "office"
LATER = 3
"""The number of epochs measured after the first."""


def main(arguments: list[str] | None = None) -> None:
    """Run it and print the results."""
    given = _options().parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(given.output or tempfile.mkdtemp(prefix="sojourn-office-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    data, what = photographs(folder)
    console.print(f"Data: {what}.", markup=False)
    console.print(_weights_text(given.weights), markup=False)
    simulation = read_simulation(dumps(_settings(given, data)), "the example")
    compiled, blobs = _compiled(simulation, data, folder, console)
    kit = unpack_blob(blobs.read(compiled.kit.digest), Kit)
    last = _lived(simulation, folder, console) if given.live else _simulated(simulation, folder, console)
    if last.view.status != "done":
        raise SystemExit(f"the job is {last.view.status}: {last.view.detail}; all logs are in {folder}")
    _show_bytes(kit, last, console)
    _show_seconds(simulation, compiled, blobs, folder, console)
    console.print(f"The model and the job file are in {folder}")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m examples.office", description=__doc__)
    parser.add_argument("--live", action="store_true", help="real processes over Mosquitto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--model", default="mobilenet_v3_small", help="one of torchvision's")
    parser.add_argument("--trains", default="classifier.*", help="pattern of the trained tensors")
    parser.add_argument("--weights", help="a state dict or safetensors file to start from, with a new head")
    parser.add_argument("--output", help="folder for all files; default: a new temporary folder")
    return parser


def _weights_text(file: str | None) -> str:
    if file:
        return f"Weights: {file}, with a new head."
    return "Weights: random, so the frozen part is no better than chance (--weights FILE for trained ones)."


def _settings(given: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The job, and the fleet that is simulated or started."""
    model: dict[str, Any] = {"name": f"torchvision:{given.model}", "trains": [given.trains]}
    if given.weights:
        model |= {"start": str(Path(given.weights).resolve()), "new_head": True}
    return {
        "name": JOB,
        "strategy": "visit",
        "rounds": given.rounds,
        "threads": 1,
        "model": model,
        "training": {"epochs": 2, "batch": 16, "lr": 0.05},
        "arranger": {"sets": 2, "size": max(1, given.devices // 2)},
        "estimator": {"epochs": 1},
        "simulation": {"data": str(data), "devices": given.devices, "sites": 1},
        "split": {"by": "domain"},
    }


def _compiled(simulation: Simulation, data: Path, folder: Path, console: Console) -> tuple[JobCompiled, FolderBlobs]:
    """The compiled job, kept on the disk, so that neither fleet compiles it again."""
    samples = load(str(data))
    np.savez(folder / "test.npz", x=samples.x_test, y=samples.y_test)
    blobs = FolderBlobs(folder / "compiled")
    console.print("Compiling the model into graphs that small devices can train: this takes a moment.")
    text = simulation.job_text(folder / "test.npz")
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return prepare(PrepareJob(JOB, text), blobs, KitCache()), blobs


def _simulated(simulation: Simulation, folder: Path, console: Console) -> JobProgress:
    running = SimulationRun(simulation, folder / "simulation")
    try:
        last = show(running.courses(), console)
    finally:
        running.close()
    state, blobs = running.fleet.job(JOB), running.fleet.stores[CLOUD].blobs
    if state.kit:
        kit = unpack_blob(blobs.read(state.kit.digest), Kit)
        (folder / "model.onnx").write_bytes(exported_model(kit, vectors.load(blobs, state.vectors["model"], kit.model)))
    return last


def _lived(simulation: Simulation, folder: Path, console: Console) -> JobProgress:
    last, model = run_live(simulation, JOB, folder, console)
    (folder / "model.onnx").write_bytes(model)
    return last


def _show_bytes(kit: Kit, last: JobProgress, console: Console) -> None:
    trained, frozen = 4 * kit.model.size, sum(len(tensor.data) for tensor in kit.frozen)
    report = last.history[-1]
    console.print(
        f"A visit carries {trained:,} bytes of model each way; the whole model has {trained + frozen:,}, of which "
        f"{frozen:,} are frozen and went to each device once."
    )
    console.print(f"The last round sent {report.traffic:,} bytes over MQTT for {report.visits} visits.")


def _show_seconds(
    simulation: Simulation, compiled: JobCompiled, blobs: FolderBlobs, folder: Path, console: Console
) -> None:
    """Train one device's share in this process, as its agent does, epoch by epoch."""
    samples = load(simulation.fleet.data)
    part = split(simulation.split, samples, simulation.fleet.devices, simulation.read().seed)[0]
    file = folder / "one-device.npz"
    np.savez(file, x=samples.x_train[part], y=samples.y_train[part])
    features = FeatureFolder(folder / "compiled", str(file), 4096)
    features.made()
    trainer = Trainer(blobs, DataSettings(path=str(file)), features=FeatureFiles(features))
    training = simulation.read().parts().training
    task = Task("train", type(training)(epochs=1, batch=training.batch, lr=training.lr), Sgd(), "float32", 1, None)
    visit = Visit(VisitId(JOB, 0, 0, 0, (0, 0)), compiled.kit, compiled.wire_vectors, task, 1, 60.0, 0)
    trainer.perform(Warm(compiled.kit, task))
    seconds = []
    for _ in range(1 + LATER):
        began = time.process_time()
        trainer.perform(Train(visit, {}))
        seconds.append(time.process_time() - began)
    console.print(
        f"One device with {len(part)} images, one thread, seconds of the processor: first epoch {seconds[0]:.2f}, "
        f"later ones {sorted(seconds[1:])[LATER // 2]:.2f}."
    )


if __name__ == "__main__":
    try:
        main()
    except SojournError as error:
        sys.exit(f"error: {error}")
