"""Models that stay on devices: the cost of a visit, and their accuracy on digits by seed.

python -m benchmarks.own_models visits [--turns 10]
python -m benchmarks.own_models seeds [--seeds 5] [--trips 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import torch
from torch import nn

from coordinator.compiling import compile_kit
from edge_agent.training.messages import Train, Trained
from edge_agent.training.trainer import Trainer
from fleet_sim.run import simulate
from sojourn.data.source import DataSettings
from sojourn.model.vectors import save
from sojourn.parts import Common, LocalNorms, Objective, Sgd, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.wire import Ref, Task, VisitId
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs

CLASSES = tuple("0123456789")
FLEET = """
threads = 1
model = { options = { hidden = [32] } }
gate = { on = false }
training = { epochs = 1, batch = 32, lr = 0.05 }
[simulation]
devices = 10
sites = 2
engine = "serial"
[split]
by = "dirichlet"
alpha = 0.3
"""
RING = 'strategy = "metafed"\nschedule = {{ trips = {trips} }}\n'
JOBS = {
    "fedavg, uniform mean (fedbn, no BatchNorm)": 'strategy = "fedbn"\nrounds = {rounds}\n',
    "metafed": RING,
    "metafed, threshold 1.1": f"{RING}objective = {{{{ threshold = 1.1 }}}}\n",
    "alone (threshold -0.5, lam 0)": f"{RING}objective = {{{{ threshold = -0.5, lam = 0.0 }}}}\n",
}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    hidden = nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, 10))


def visits(turns: int) -> None:
    streams = Common().compiled
    made = compile_kit(network(), InputSpec((1, 8, 8)), CLASSES, mean=[8.0], std=[4.0], seed=1, objective=streams)
    size = 4 * made.kit.model.size
    blobs, kit = MemoryBlobs(), pack_blob(made.kit)
    blobs.put(kit, ref_of(kit).digest)
    start = save(blobs, made.initial, "float32", made.kit.model)

    def work(objective: Objective, **memory: Ref) -> Train:
        task = Task("train", Training(epochs=1, batch=32, lr=0.01), objective, "float32", 1)
        visit = Visit(VisitId("job", 0, 0, 0, (0, 0)), ref_of(kit), {"model": start}, task, 1, 60.0, 1)
        return Train(visit, memory, len(memory))

    def trained(work: Train) -> Trained:
        done = trainer.perform(work)
        assert isinstance(done, Trained)
        return done

    with tempfile.TemporaryDirectory(prefix="sojourn-own-") as folder:
        draw = np.random.default_rng(1)
        x, y = draw.integers(0, 17, (1000, 8, 8), dtype=np.uint8), draw.integers(0, 10, 1000)
        np.savez(f"{folder}/data.npz", x=x, y=np.array(CLASSES)[y])
        trainer = Trainer(blobs, DataSettings(path=f"{folder}/data.npz"))
        norms, ring = trained(work(LocalNorms())).memory, Common(phase="accumulate", validation=0.0, test=0.0)
        cases = {
            "sgd": work(Sgd()),
            "local-norms, test 0": work(LocalNorms(test=0.0), **norms),
            "local-norms, test 0.2": work(LocalNorms(), **norms),
            "common, all samples, flag unset": work(ring, own=start),
            "common, all samples, flag set": work(ring, **{"own-good": start}),
        }
        took: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(turns + 1):  # the first is a warm-up
            for name, each in cases.items():
                began = time.perf_counter()
                trained(each)
                took[name] += [time.perf_counter() - began] if turn else []
        print(f"model of {made.kit.model.size:,} numbers (P), 1,000 samples, one epoch; {turns} turns in turn")
        for name, each in cases.items():
            tracemalloc.start()
            kept = sum(ref.size for ref in trained(each).memory.values())
            peak = tracemalloc.get_traced_memory()[1] / size
            tracemalloc.stop()
            middle, plain = statistics.median(took[name]), statistics.median(took["sgd"])
            cost = f"{1000 * middle:7.1f} ms, {middle / plain:.2f} of sgd, {peak:.1f} P in numpy at most"
            print(f"{name:32} {cost}, {kept:,} bytes kept")
        print(f"load {os.getloadavg()[0]:.1f}")


def seeds(count: int, trips: int) -> None:
    for seed in range(1, count + 1):
        for name, text in JOBS.items():
            job = f"seed = {seed}\n{text.format(trips=trips, rounds=trips + 2)}{FLEET}"
            with tempfile.TemporaryDirectory(prefix="sojourn-own-") as folder:
                found = simulate(job, Path(folder) / "out").metrics
            words = [f"{key} {found[key]:.4f}" for key in ("accuracy", "own_accuracy", "own_accuracy_spread")]
            print(f"seed {seed} {name}: {', '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["visits", "seeds"])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=15)
    given = parser.parse_args()
    visits(given.turns) if given.what == "visits" else seeds(given.seeds, given.trips)


if __name__ == "__main__":
    main()
