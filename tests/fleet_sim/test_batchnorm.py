"""A small residual network with BatchNorm under several strategies: it learns, repeats, and keeps a valid state."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from coordinator.compiling import compile_kit
from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.rounds import preparing
from coordinator.rounds.preparing import KitCache
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.model import vectors
from tests.fleet_sim.batchnorm_net import SmallResidual

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit

TEXT = """
rounds = 2
threads = 1
seed = 1
model.name = "tests.fleet_sim.batchnorm_net:SmallResidual"
model.options = {{ classes = 10 }}
model.batchnorm = "{batchnorm}"
data = {{ exemplars_per_class = 3 }}
training = {{ epochs = 1, batch = 11, lr = 0.05 }}
{strategy}
[simulation]
devices = 4
sites = 2
engine = "{engine}"
workers = 2
[split]
by = "dirichlet"
alpha = 0.5
samples = 100
"""
STRATEGIES = {
    "visit": 'strategy = "visit"\narranger = { sets = 2, size = 2 }\nestimator = { epochs = 1 }',
    "fedavg": 'strategy = "fedavg"',
    "fedadam": 'strategy = "fedadam"\naggregator = { lr = 0.1 }',
    "scaffold": 'strategy = "scaffold"\nencoding = "int8"',
    "fedelmy": 'strategy = "fedelmy"\nobjective = { models = 1, warmup = 1 }',
}


@cache
def compiled(batchnorm: str) -> tuple[Kit, NDArray[np.float32]]:
    """Compiled once for all processes of a test run; a custom model would be compiled per job."""
    text = TEXT.format(batchnorm=batchnorm, strategy="", engine="serial").partition("[simulation]")[0]
    job = read_job(f'name = "any"\n{text}'.replace("exemplars_per_class = 3", 'test = "digits"'), "any")
    found = KitCache().find(f"tests-batchnorm-{batchnorm}")
    if found:
        return found
    data = public_data(job)
    torch.manual_seed(1)
    made = compile_kit(
        SmallResidual(10), data.input, data.classes, mean=data.mean, std=data.std, seed=1, batchnorm=job.model.batchnorm
    )
    KitCache().keep(f"tests-batchnorm-{batchnorm}", made.kit, made.initial)
    return made.kit, made.initial


def simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, batchnorm: str = "merge", engine: str = "serial"
) -> NDArray[np.float32]:
    """Return the final model; training must have succeeded on every device."""
    kit, initial = compiled(batchnorm)
    monkeypatch.setattr(preparing, "_compiled", lambda *_: (kit, initial))
    text = TEXT.format(batchnorm=batchnorm, strategy=STRATEGIES[strategy], engine=engine)
    if strategy == "fedelmy":
        text = text.replace("rounds = 2\n", "")
    running = SimulationRun(read_simulation(text, "a test"), folder / f"{strategy}-{batchnorm}-{engine}")
    try:
        *_, course = running.courses()
    finally:
        running.close()
    assert course.view.status == "done", course.view.detail
    assert [line for report in course.history for line in report.failures] == []
    state, blobs = running.fleet.job(running.name), running.fleet.stores[CLOUD].blobs
    return vectors.load(blobs, state.vectors["model"], kit.model)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_state_is_merged_and_stays_valid_under_every_strategy(tmp_path, monkeypatch, strategy) -> None:
    (kit, initial), model = compiled("merge"), simulated(tmp_path, monkeypatch, strategy)
    size = kit.model.trainable_size
    assert np.isfinite(model).all()
    assert not np.array_equal(model[:size], initial[:size])
    assert (model[size:] != initial[size:]).all()
    assert all((model[where] > 0).all() for where in kit.model.variances)


@pytest.mark.parametrize("strategy", ["visit", "scaffold"])
def test_pool_and_serial_engine_give_the_same_bits(tmp_path, monkeypatch, strategy) -> None:
    alone, together = (simulated(tmp_path, monkeypatch, strategy, engine=it) for it in ("serial", "pool"))
    assert alone.tobytes() == together.tobytes()


def test_frozen_statistics_are_excluded_from_the_model(tmp_path, monkeypatch) -> None:
    (kit, initial), (merged, _) = compiled("frozen"), compiled("merge")
    assert kit.model.tensors == merged.model.tensors[: len(kit.model.tensors)]
    assert (kit.model.size, kit.model.state) == (merged.model.trainable_size, 0)
    model = simulated(tmp_path, monkeypatch, "visit", "frozen")
    assert not np.array_equal(model, initial)
