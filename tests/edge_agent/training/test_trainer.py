"""Training a visit: compared with torch, reproducible bit for bit, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np
import pytest
import torch

from edge_agent.training.messages import Train, Warm, Warmed
from edge_agent.training.objectives import NAMES
from edge_agent.training.trainer import InlineTraining
from edge_agent.training.visit_vectors import Unsupported, reason_of
from sojourn import parts
from sojourn.errors import ConfigError, DataError, DiskFull, Fault, JobError, StoreError
from sojourn.model.vectors import load
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.wire import Ref
from sojourn.randomness import batches
from sojourn.store.blobs import ref_of
from tests.edge_agent.training.kits import MEAN, STD, Bench, compiled, network, visit_for

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def by_torch(
    bench: Bench, epochs: int, batch: int, seed: int, optimiser: str = "sgd", **options: float
) -> tuple[NDArray[np.float32], list[float]]:
    """The same visit in torch."""
    torch.set_num_threads(1)
    module = network()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(compiled().initial.copy()), module.parameters())
    kind: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimiser]
    stepping = kind(module.parameters(), **options)
    x = (torch.from_numpy(bench.x[:, None]).float() - MEAN) / STD
    y = torch.from_numpy(bench.y)
    losses = []
    for index in batches(seed, len(y), batch, epochs):
        stepping.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x[index]), y[index])
        loss.backward()
        stepping.step()
        losses.append(loss.item())
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), losses


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.05},
        {"momentum": 0.9, "weight_decay": 0.05},
        {"optimiser": "adam"},
        {"optimiser": "adam", "weight_decay": 0.05},
    ],
)
def test_training_matches_torch(bench: Bench, options: dict[str, Any]) -> None:
    ours = bench.vector(epochs=3, batch=8, lr=0.02, seed=11, **options)
    theirs, _ = by_torch(bench, epochs=3, batch=8, seed=11, lr=0.02, **options)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_every_parameter_changes_the_result(bench: Bench) -> None:
    plain: dict[str, Any] = {"epochs": 2, "batch": 8, "lr": 0.02, "seed": 11}
    knobs: list[dict[str, Any]] = [{"momentum": 0.5}, {"weight_decay": 0.01}, {"optimiser": "adam"}]
    knobs += [{"epochs": 3}, {"batch": 9}, {"lr": 0.021}, {"seed": 12}]
    results = [bench.vector(**(plain | knob)).tobytes() for knob in [{}, *knobs]]
    assert len(set(results)) == len(results)


def test_same_seed_gives_the_same_bits(bench: Bench, tmp_path: Path) -> None:
    task: dict[str, Any] = {"epochs": 2, "momentum": 0.9}
    first = bench.train(**task)
    assert bench.train(**task).vectors == first.vectors
    assert Bench(tmp_path).train(**task).vectors == first.vectors


def test_metrics_report_mean_loss_of_first_and_last_epoch(bench: Bench) -> None:
    outcome = bench.train(epochs=3, batch=8, lr=0.02, seed=11)
    _, losses = by_torch(bench, epochs=3, batch=8, seed=11, lr=0.02)
    sizes = [8] * 6 + [2]
    assert outcome.metrics["loss_first"] == pytest.approx(np.average(losses[:7], weights=sizes), abs=1e-5)
    assert outcome.metrics["loss"] == pytest.approx(np.average(losses[14:], weights=sizes), abs=1e-5)
    assert outcome.metrics["steps"] == 21
    assert outcome.metrics["seconds"] >= 0
    assert outcome.samples == 50


def test_diverged_loss_is_reported(bench: Bench) -> None:
    outcome = bench.train(epochs=5, lr=1e8)
    assert "loss" not in outcome.metrics
    assert outcome.metrics["diverged"] == 1.0


@pytest.mark.parametrize(("encoding", "bound"), [("float16", 1e-3), ("int8", 1e-2)])
def test_compressed_result_is_a_delta(bench: Bench, encoding: str, bound: float) -> None:
    whole = bench.vector(epochs=2)
    ref = bench.train(epochs=2, encoding=encoding).vectors["model"]
    delta = load(bench.blobs, ref, compiled().kit.model)
    exact = whole - compiled().initial
    assert ref.delta
    assert ref.encoding == encoding
    assert ref.size < whole.nbytes
    assert 0 < np.abs(delta - exact).max() <= bound * np.abs(exact).max()


def test_float32_result_is_not_a_delta(bench: Bench) -> None:
    ref = bench.train().vectors["model"]
    assert (ref.delta, ref.encoding) == (False, "float32")


def test_few_samples_of_one_class_train(tmp_path: Path) -> None:
    bench = Bench(tmp_path, samples=3, classes=("owl",))
    outcome = bench.train(batch=1000, epochs=2)
    assert outcome.samples == 3
    assert outcome.metrics["steps"] == 2
    theirs, _ = by_torch_of_class(bench, 2)
    ours = load(bench.blobs, outcome.vectors["model"], compiled().kit.model)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def by_torch_of_class(bench: Bench, number: int) -> tuple[NDArray[np.float32], list[float]]:
    bench.y[:] = number
    return by_torch(bench, epochs=2, batch=1000, seed=11, lr=0.1)


def test_warm_up_reports_the_sample_count(bench: Bench) -> None:
    visit = visit_for(bench.blobs).visit
    assert bench.trainer.perform(Warm(visit.kit, visit.task)) == Warmed(50)


def reports(bench: Bench, work: Warm | Train) -> list[WorkEvent]:
    received: list[WorkEvent] = []
    InlineTraining(bench.trainer).start("key", work, received.append)
    return received


def test_inline_training_reports_every_step(bench: Bench) -> None:
    *steps, last = reports(bench, visit_for(bench.blobs, batch=25))
    assert steps == [WorkProgress("key", at, 2) for at in range(3)]
    assert isinstance(last, WorkDone)


def test_runtime_that_disagrees_with_the_probe_declines(bench: Bench) -> None:
    kit = compiled().kit
    data = pack_blob(msgspec.structs.replace(kit, probe=msgspec.structs.replace(kit.probe, loss=kit.probe.loss + 1)))
    bench.blobs.put(data)
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, kit=ref_of(data))
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "runtime"
    assert "loss" in outcome.detail


def test_missing_data_declines(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "data.npz").unlink()
    [outcome] = reports(bench, visit_for(bench.blobs))
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "data"


@pytest.mark.parametrize("vectors", [{}, {"model": Ref(bytes(32), 4, "int8", delta=True)}])
def test_visit_without_a_whole_model_is_unsupported(bench: Bench, vectors: dict[str, Ref]) -> None:
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, vectors=vectors)
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "unsupported"


def test_missing_blob_fails(bench: Bench) -> None:
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, vectors={"model": Ref(bytes(32), 4, "float32")})
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "failed"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (DataError("x"), "data"),
        (Unsupported("x"), "unsupported"),
        (ConfigError("x"), "unsupported"),
        (JobError("x"), "unsupported"),
        (MemoryError(), "memory"),
        (RuntimeError("bad_alloc in node"), "memory"),
        (DiskFull("x"), "disk"),
        (StoreError("x"), "failed"),
        (Fault("x"), "failed"),
        (ZeroDivisionError(), "failed"),
    ],
)
def test_each_error_maps_to_its_reason(error: Exception, word: str) -> None:
    assert reason_of(error) == word


def test_offer_names_every_built_in_objective() -> None:
    kinds = {form for form in get_args(parts.Objective) if not issubclass(form, parts.Own)}
    assert set(NAMES) == {str(form.__struct_config__.tag) for form in kinds}
    assert len(NAMES) == len(kinds)
