"""Visits per second of an engine, compared with a plain torch loop in as many processes, without a framework.

cnn: CIFAR-10's shape, 1000 users of 50 samples, 50 of them a round, batch 10, one epoch, the CNN of pfl-research's
benchmark. logistic: 784 numbers, 1000 devices of 60 samples, 10 of them a round, batch 10. The data is random.

The last columns are milliseconds of processor time for a visit: of this process (with the mean), and of its workers.

Both start a round from the same model, train its users and end with the mean of their models. They run in turns, so
that the machine's load affects both. The ratio is the median over the turns.

python -m benchmarks.engines [--workload cnn] [--engines pool serial torch batched] [--rounds 7] [--processes 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.rivals.plain_loop import PlainLoop
from benchmarks.rivals.workloads import BATCH, CLASSES, RATE, WORKLOADS, data
from coordinator.compiling import compile_kit
from edge_agent.training.messages import Train
from fleet_sim.engines import Network, ProcessPoolEngine, SerialEngine, Shards
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.torch_graphs import TorchEngine
from sojourn.model import vectors
from sojourn.node.machine import WorkDone
from sojourn.parts import Sgd, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.wire import Task, VisitId
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.rivals.workloads import Workload
    from coordinator.compiling import Compiled
    from fleet_sim.engines import Engine

PAUSE = 0.2


class SimulatedUsers:
    """The visits of a round at an engine, and their mean."""

    def __init__(self, name: str, workload: Workload, processes: int, device: str = "cpu", together: int = 64) -> None:
        self._workload = workload
        compiled: Compiled = compile_kit(
            workload.build(), InputSpec(workload.shape), CLASSES, mean=None, std=None, seed=1
        )
        self._kit, self.model, self._blobs = compiled.kit, compiled.initial, MemoryBlobs()
        packed = pack_blob(self._kit)
        self._ref = ref_of(packed)
        self._blobs.put(packed, self._ref.digest)
        self._engine = _engine(name, workload, processes, device, together)

    def round(self, users: list[int]) -> None:
        """Send the model, and compute the mean of the results."""
        task = Task("train", Training(batch=BATCH, lr=RATE), Sgd(), "float32", 1)
        model = vectors.save(self._blobs, self.model, "float32", self._kit.model)
        futures = []
        for user in users:
            visit = Visit(VisitId("job", 0, user, 0, (0, 0)), self._ref, {"model": model}, task, user, 60.0)
            futures.append(self._engine.start(str(user), str(user), Train(visit, {}), self._blobs))
        self.model = vectors.weighted_mean(map(self._vector, futures), [1.0] * len(users))
        self._blobs.sweep({self._ref.digest})

    def training(self) -> float:
        """Return the processor time of the engine's training so far, in seconds."""
        return self._engine.spent.training

    def close(self) -> None:
        self._engine.close()

    def _vector(self, future: Any) -> NDArray[np.float32]:
        outcome = future.result()
        assert isinstance(outcome.event, WorkDone), outcome.event
        ref = outcome.event.outcome.vectors["model"]
        return vectors.decode(outcome.blobs[ref.digest], ref.encoding, self._kit.model)


def _engine(name: str, workload: Workload, processes: int, device: str, together: int) -> Engine:
    x, y = data(workload)
    rows = np.arange(len(y)).reshape(workload.users, -1)
    shards = Shards(x, y, CLASSES, {str(user): rows[user] for user in range(workload.users)})
    network = Network(workload.build())
    match name:
        case "pool":
            return ProcessPoolEngine(shards, processes)
        case "serial":
            return SerialEngine(shards)
        case "torch":
            return TorchEngine(shards, network, device)
        case _:
            return BatchedEngine(shards, network, device, together)


def seconds(side: SimulatedUsers | PlainLoop, users: list[int]) -> float:
    time.sleep(PAUSE)
    began = time.perf_counter()
    side.round(users)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="cnn", choices=list(WORKLOADS))
    parser.add_argument("--engines", nargs="+", default=["pool"], choices=["pool", "serial", "torch", "batched"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[arguments.workload]
    plain = PlainLoop(arguments.workload, arguments.processes)
    draw = np.random.default_rng(1)
    print("engine    visits/s  plain loop  ratio   load  ms here  ms workers")
    for name in arguments.engines:
        fleet, times, load = SimulatedUsers(name, workload, arguments.processes), [], os.getloadavg()[0]
        for _ in range(arguments.rounds + 1):
            users = draw.choice(workload.users, workload.cohort, replace=False).tolist()
            loop, busy, spent = seconds(plain, users), time.process_time(), fleet.training()
            times.append((loop, seconds(fleet, users), time.process_time() - busy, fleet.training() - spent))
        fleet.close()
        taken = [statistics.median(column) / workload.cohort for column in zip(*times[1:], strict=True)]
        ratio = statistics.median(loop / ours for loop, ours, *_ in times[1:])
        here, workers = (1e3 * each for each in taken[2:])
        print(f"{name:8} {1 / taken[1]:9.1f} {1 / taken[0]:11.1f} {ratio:6.2f} {load:6.1f} {here:8.2f} {workers:11.2f}")
    plain.close()


if __name__ == "__main__":
    main()
