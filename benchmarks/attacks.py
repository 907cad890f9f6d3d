"""The effect of one bad device of ten on a job on digits, with the default gate and with the gate off.

Every attack is paired by seed with a fleet without the device; the numbers are means of the last ten rounds. With
--honest no device is bad: it prints the share of honest visits that the gate refuses, by strategy, alpha and seed.

Run from the root:
python -m benchmarks.attacks [--seeds 5] [--rounds 30] [--alpha 0.5] [--strategy visit fedavg] [--without-off]
python -m benchmarks.attacks --honest [--alpha 0.1 0.2 0.3] [--strategy visit fedcat] [--model cnn] [--devices 12]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import numpy as np

from edge_agent.training.messages import Train, Trained
from fleet_sim import run as simulating
from fleet_sim.engines.engine import Outcome
from fleet_sim.engines.serial import SerialEngine
from fleet_sim.settings import read_simulation
from sojourn.model import vectors
from sojourn.node.machine import WorkDone
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.randomness import generator
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from coordinator.results.folder import EndedVisit
    from fleet_sim.preparing import PreparedTraining
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]
    Spoil = Callable[[Vector, Vector, np.random.Generator], Vector]

DEVICES, LAST = 10, 10
BAD = "device-04"
MANY = 1_000_000_000
"""The samples and steps that a liar claims."""
HEAD = "| strategy | attack | absent | with the gate | points | worst seed | gate off | honest refused | bad refused |"
LEAST = 8
"""Devices that a round needs: the fleet of ten must do without the absent one."""


@dataclass(frozen=True)
class Attack:
    """An attack: how the device changes its model, whether it trains on flipped labels, and what it claims."""

    spoil: Spoil | None = None
    flipped: bool = False
    lies: bool = False
    signature: bool = False


def _times(factor: float) -> Spoil:
    return lambda before, after, _: before + np.float32(factor) * (after - before)


def _random(before: Vector, after: Vector, draw: np.random.Generator) -> Vector:
    """Return a random update of the same length as the training's."""
    way = draw.normal(size=len(before))
    return (before + way * (np.linalg.norm(after - before) / np.linalg.norm(way))).astype(np.float32)


ATTACKS = {
    "label flip": Attack(flipped=True),
    "x -5": Attack(_times(-5)),
    "x -1000, lies about steps and samples": Attack(_times(-1000), lies=True),
    "random, same norm": Attack(_random),
    "chosen signature, label flip": Attack(flipped=True, signature=True),
}


class BadDeviceEngine:
    """An engine in which one device is bad."""

    def __init__(self, good: SerialEngine, attack: Attack, seed: int) -> None:
        self._good, self._attack, self._draw = good, attack, generator(seed, "attack")
        shards = good._shards  # noqa: SLF001  # the data with other labels
        flipped = len(shards.classes) - 1 - shards.y
        self._bad = SerialEngine(replace(shards, y=flipped)) if attack.flipped else good

    def start(self, device: str, key: str, work: Any, blobs: BlobStore) -> Future[Outcome]:
        """Train the visit, honestly or not."""
        if device != BAD or not isinstance(work, Train):
            return self._good.start(device, key, work, blobs)
        made = self._bad.start(device, key, work, blobs)
        done: Future[Outcome] = type(made)()
        done.set_result(self._spoiled(made.result(), work, blobs))
        return done

    def _spoiled(self, outcome: Outcome, work: Train, blobs: BlobStore) -> Outcome:
        event = outcome.event
        if not isinstance(event, WorkDone) or not isinstance(event.outcome, Trained):
            return outcome
        trained, store = event.outcome, MemoryBlobs()
        kit = unpack_blob(blobs.read(work.visit.kit.digest), Kit)
        if self._attack.spoil and work.visit.task.kind == "train":
            before = vectors.load(blobs, work.visit.vectors["model"], kit.model)
            after = vectors.decode(outcome.blobs[trained.vectors["model"].digest], "float32", kit.model)
            ref = vectors.save(store, self._attack.spoil(before, after, self._draw), "float32", kit.model)
            trained = msgspec.structs.replace(trained, vectors={**trained.vectors, "model": ref})
        if self._attack.lies:
            metrics = {**trained.metrics, "steps": float(MANY)}
            trained = msgspec.structs.replace(trained, samples=MANY, metrics=metrics)
        if self._attack.signature and work.visit.task.kind == "estimate":
            trained = msgspec.structs.replace(trained, signature=(1.0,) * len(kit.classes))
        made = {ref.digest: store.read(ref.digest) for ref in trained.vectors.values() if store.has(ref.digest)}
        return Outcome(msgspec.structs.replace(event, outcome=trained), {**outcome.blobs, **made})

    def close(self) -> None:
        """No resources are open."""


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job: the mean accuracy of its last rounds, and the kept and refused results."""

    accuracy: float
    kept: int
    refused: int
    bad_kept: int
    bad_refused: int


def outcome(settings: dict[str, Any], seed: int, attack: Attack | None, *, absent: bool = False) -> JobOutcome:
    """Simulate one job. Without an attack all devices are honest; `absent` removes the bad one."""
    simulation = read_simulation("", "benchmark", {**settings, "seed": seed})
    ended: list[EndedVisit] = []
    prepare = simulating.prepare_training

    def prepared(*given: Any, train: bool) -> PreparedTraining:
        made = prepare(*given, train=train)
        assert isinstance(made.engine, SerialEngine)
        bad = BadDeviceEngine(made.engine, attack, seed) if attack else made.engine
        return replace(made, engine=bad)

    with tempfile.TemporaryDirectory() as folder, patch.object(simulating, "prepare_training", prepared):
        running = simulating.SimulationRun(simulation, Path(folder) / "run")
        if absent:
            running.fleet.kill(BAD)
        running.fleet._visited = ended.append  # noqa: SLF001  # no folder of results is wanted
        try:
            *_, last = running.courses()
        finally:
            running.engine.close()
            running.results.close()
    back = Counter(it.report.device == BAD for it in ended if it.report.status in ("done", "refused"))
    refused = Counter(it.report.device == BAD for it in ended if it.report.status == "refused")
    accuracy = fmean(report.accuracy for report in last.history[-LAST:])
    counts = [each for whose in (False, True) for each in (back[whose] - refused[whose], refused[whose])]
    return JobOutcome(accuracy, *counts)


def show(strategy: str, settings: dict[str, Any], seeds: range, attacks: list[str], *, off: bool) -> None:
    """Print a strategy's rows: each attack relative to the device's absence, with and without (`off`) the gate."""
    absent = [outcome(settings, seed, None, absent=True) for seed in seeds]
    honest = [outcome(settings, seed, None) for seed in seeds]
    print(_row(strategy, "no bad device", honest, absent, None), flush=True)
    for name in attacks:
        gated = [outcome(settings, seed, ATTACKS[name]) for seed in seeds]
        opened = [outcome({**settings, "gate": "off"}, seed, ATTACKS[name]) for seed in seeds] if off else None
        print(_row(strategy, name, gated, absent, opened), flush=True)


def show_honest(strategy: str, alpha: float, settings: dict[str, Any], seeds: range) -> None:
    """Print one row: the honest visits that the gate refuses by seed, and the accuracy with and without the gate."""
    gated = [outcome(settings, seed, None) for seed in seeds]
    opened = [outcome({**settings, "gate": "off"}, seed, None) for seed in seeds]
    pairs = [(it.refused + it.bad_refused, it.kept + it.bad_kept + it.refused + it.bad_refused) for it in gated]
    by_seed = " | ".join(f"{refused} of {visits}" for refused, visits in pairs)
    share = sum(refused for refused, _ in pairs) / sum(visits for _, visits in pairs)
    with_gate, without = (fmean(it.accuracy for it in each) for each in (gated, opened))
    print(f"| {strategy} | {alpha:g} | {by_seed} | {share:.2%} | {with_gate:.1%} | {without:.1%} |", flush=True)


def _row(
    strategy: str, name: str, gated: list[JobOutcome], absent: list[JobOutcome], opened: list[JobOutcome] | None
) -> str:
    with_gate, without, gone = (fmean(it.accuracy for it in each) for each in (gated, opened or gated, absent))
    apart = [100 * (it.accuracy - other.accuracy) for it, other in zip(gated, absent, strict=True)]
    kept, refused = sum(it.kept for it in gated), sum(it.refused for it in gated)
    bad = sum(it.bad_refused for it in gated), sum(it.bad_refused + it.bad_kept for it in gated)
    off = f"{without:.1%}" if opened else ""
    return (
        f"| {strategy} | {name} | {gone:.1%} | {with_gate:.1%} | {fmean(apart):+.1f} | {min(apart):+.1f} | {off} "
        f"| {refused} of {kept + refused} ({refused / (kept + refused):.2%}) | {bad[0]} of {bad[1]} |"
    )


def main() -> None:
    """Run all attacks and print the table."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--rounds", type=int, default=30)
    given.add_argument("--alpha", type=float, nargs="+", default=[0.5], help="of the Dirichlet split; 0: all alike")
    given.add_argument("--devices", type=int, default=DEVICES)
    given.add_argument("--model", default="mlp")
    given.add_argument("--honest", action="store_true", help="no device is bad: count the honest visits refused")
    given.add_argument("--without-off", action="store_true", help="leave out the runs with the gate off")
    given.add_argument("--strategy", nargs="+", default=["visit", "fedavg"])
    given.add_argument("--attack", nargs="+", default=list(ATTACKS))
    asked = given.parse_args()
    fleet = {"simulation.devices": asked.devices, "simulation.sites": 1, "simulation.engine": "serial"}
    seeds = range(1, asked.seeds + 1)
    if asked.honest:
        print(f"| strategy | alpha | {' | '.join(f'seed {seed}' for seed in seeds)} | refused | accuracy | gate off |")
        print("|---|---|" + "---|" * (asked.seeds + 3))
    for alpha in asked.alpha:
        split = {"split.by": "dirichlet", "split.alpha": alpha} if alpha else {"split.by": "iid"}
        if not asked.honest:
            print(f"\nalpha {alpha:g}\n\n{HEAD}\n|---|---|---|---|---|---|---|---|---|")
        for strategy in asked.strategy:
            settings = {"strategy": strategy, "rounds": asked.rounds, "fleet.devices": LEAST, **fleet, **split}
            settings |= {"gate": "enforce", "model": asked.model}
            if asked.honest:
                show_honest(strategy, alpha, {**settings, "fleet.devices": asked.devices}, seeds)
            else:
                show(strategy, settings, seeds, asked.attack, off=not asked.without_off)


if __name__ == "__main__":
    main()
