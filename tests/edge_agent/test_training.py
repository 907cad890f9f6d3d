"""Training a visit: against torch, bit for bit with itself, and what it says when it cannot."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch

from edge_agent.data import DataSettings
from edge_agent.objectives import NAMES
from edge_agent.training import InlineTraining, Trainer, Unsupported, reason_of
from edge_agent.work import Train, Trained, Warm, Warmed
from sojourn.blobs import MemoryBlobs, ref_of
from sojourn.envelope import pack_blob, unpack_blob
from sojourn.errors import DataError, DiskFull, Fault, InvalidBlob, StoreError
from sojourn.exemplars import Exemplars, signature
from sojourn.graphs import Graphs
from sojourn.machine import Did, DidNot, Doing
from sojourn.randomness import batches
from sojourn.vectors import load
from sojourn.wire import Ref
from tests.edge_agent.kits import CLASSES, MEAN, STD, compiled, network, visit_for, write_data

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class Bench:
    """A trainer with its blobs and data."""

    def __init__(self, folder: Path, samples: int = 50, classes: tuple[str, ...] = CLASSES) -> None:
        path = folder / "data.npz"
        self.x, self.y = write_data(path, samples, classes)
        self.blobs = MemoryBlobs()
        self.trainer = Trainer(self.blobs, DataSettings(path=str(path)))

    def train(self, **task: Any) -> Trained:
        outcome = self.trainer.perform(visit_for(self.blobs, **task))
        assert isinstance(outcome, Trained)
        return outcome

    def vector(self, **task: Any) -> NDArray[np.float32]:
        return load(self.blobs, self.train(**task).vectors["model"], compiled().kit.model)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def by_torch(
    bench: Bench, epochs: int, batch: int, seed: int, **options: float
) -> tuple[NDArray[np.float32], list[float]]:
    """The same visit, written with torch alone."""
    torch.set_num_threads(1)
    module = network()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(compiled().initial.copy()), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), **options)
    x = (torch.from_numpy(bench.x[:, None]).float() - MEAN) / STD
    y = torch.from_numpy(bench.y)
    losses = []
    for index in batches(seed, len(y), batch, epochs):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x[index]), y[index])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), losses


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.05}, {"momentum": 0.9, "weight_decay": 0.05}],
)
def test_training_is_what_torch_does(bench: Bench, options: dict[str, float]) -> None:
    ours = bench.vector(epochs=3, batch=8, lr=0.02, seed=11, **options)
    theirs, _ = by_torch(bench, epochs=3, batch=8, seed=11, lr=0.02, **options)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_every_knob_makes_a_difference(bench: Bench) -> None:
    plain: dict[str, Any] = {"epochs": 2, "batch": 8, "lr": 0.02, "seed": 11}
    knobs = [{"momentum": 0.5}, {"weight_decay": 0.01}, {"epochs": 3}, {"batch": 9}, {"lr": 0.021}, {"seed": 12}]
    results = [bench.vector(**(plain | knob)).tobytes() for knob in [{}, *knobs]]
    assert len(set(results)) == len(results)


def test_the_same_seed_gives_the_same_bits(bench: Bench, tmp_path: Path) -> None:
    task: dict[str, Any] = {"epochs": 2, "momentum": 0.9}
    first = bench.train(**task)
    assert bench.train(**task).vectors == first.vectors
    assert Bench(tmp_path).train(**task).vectors == first.vectors


def test_metrics_tell_the_mean_losses_of_the_first_and_the_last_epoch(bench: Bench) -> None:
    outcome = bench.train(epochs=3, batch=8, lr=0.02, seed=11)
    _, losses = by_torch(bench, epochs=3, batch=8, seed=11, lr=0.02)
    sizes = [8] * 6 + [2]
    assert outcome.metrics["loss_first"] == pytest.approx(np.average(losses[:7], weights=sizes), abs=1e-5)
    assert outcome.metrics["loss"] == pytest.approx(np.average(losses[14:], weights=sizes), abs=1e-5)
    assert outcome.metrics["steps"] == 21
    assert outcome.metrics["seconds"] >= 0
    assert outcome.samples == 50


def test_a_loss_that_diverges_is_not_hidden(bench: Bench) -> None:
    outcome = bench.train(epochs=5, lr=1e8)
    assert isnan(outcome.metrics["loss"])


@pytest.mark.parametrize(("encoding", "bound"), [("float16", 1e-3), ("int8", 1e-2)])
def test_a_compressed_result_is_a_difference(bench: Bench, encoding: str, bound: float) -> None:
    whole = bench.vector(epochs=2)
    ref = bench.train(epochs=2, encoding=encoding).vectors["model"]
    delta = load(bench.blobs, ref, compiled().kit.model)
    exact = whole - compiled().initial
    assert ref.delta
    assert ref.encoding == encoding
    assert ref.size < whole.nbytes
    assert 0 < np.abs(delta - exact).max() <= bound * np.abs(exact).max()


def test_a_whole_result_is_no_difference(bench: Bench) -> None:
    ref = bench.train().vectors["model"]
    assert (ref.delta, ref.encoding) == (False, "float32")


def test_few_samples_and_one_class_just_train(tmp_path: Path) -> None:
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


def exemplars() -> Exemplars:
    draw = np.random.default_rng(9)
    x = draw.integers(0, 17, (70, 1, 8, 8), dtype=np.uint8)
    return Exemplars.of(x, draw.integers(0, 2, 70))  # none of class 2


def with_exemplars(work: Train, blobs: MemoryBlobs) -> Train:
    data = pack_blob(exemplars())
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    return Train(msgspec.structs.replace(work.visit, vectors=work.visit.vectors | {"exemplars": ref}), {})


def test_a_signature_is_the_same_on_both_sides(bench: Bench) -> None:
    sent = bench.train(kind="estimate", epochs=2)
    assert sent.signature is None
    model = load(bench.blobs, sent.vectors["model"], compiled().kit.model)
    there = signature(Graphs(compiled().kit, 1), model, exemplars(), len(CLASSES))

    outcome = bench.trainer.perform(with_exemplars(visit_for(bench.blobs, kind="estimate", epochs=2), bench.blobs))
    assert isinstance(outcome, Trained)
    assert outcome.signature == there
    assert outcome.vectors == {}
    assert there[2] == 0.0
    assert 0 < there[0] < 1


def test_a_signature_is_the_mean_of_softmax_by_torch(bench: Bench) -> None:
    x, y = exemplars().arrays()
    module = network()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(compiled().initial.copy()), module.parameters())
    with torch.no_grad():
        answers = torch.softmax(module((torch.from_numpy(x.astype(np.float32)) - MEAN) / STD).double(), 1).numpy()
    expected = [answers[y == 0, 0].mean(), answers[y == 1, 1].mean(), 0.0]
    found = signature(Graphs(compiled().kit, 1), compiled().initial, exemplars(), len(CLASSES))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_exemplars_that_do_not_add_up_are_refused() -> None:
    good = exemplars()
    assert unpack_blob(pack_blob(good), Exemplars) == good
    for bad in ({"x": good.x[1:]}, {"y": good.y[1:]}, {"shape": (70, 64, 2)}):
        with pytest.raises(InvalidBlob):
            msgspec.structs.replace(good, **bad).arrays()
    wild = msgspec.structs.replace(good, y=(2, *good.y[1:]))
    with pytest.raises(InvalidBlob, match="2 classes"):
        signature(Graphs(compiled().kit, 1), compiled().initial, wild, 2)


def test_training_ignores_exemplars_unless_it_estimates(bench: Bench) -> None:
    outcome = bench.trainer.perform(with_exemplars(visit_for(bench.blobs), bench.blobs))
    assert isinstance(outcome, Trained)
    assert outcome.signature is None
    assert outcome.vectors == bench.train().vectors


def test_warming_says_how_many_samples_there_are(bench: Bench) -> None:
    visit = visit_for(bench.blobs).visit
    assert bench.trainer.perform(Warm(visit.kit, visit.task)) == Warmed(50)


def reports(bench: Bench, work: Warm | Train) -> list[Did | Doing | DidNot]:
    heard: list[Did | Doing | DidNot] = []
    InlineTraining(bench.trainer).start("key", work, heard.append)
    return heard


def test_inline_training_reports_every_step(bench: Bench) -> None:
    *steps, last = reports(bench, visit_for(bench.blobs, batch=25))
    assert steps == [Doing("key", at, 2) for at in range(3)]
    assert isinstance(last, Did)


def test_a_runtime_that_disagrees_with_the_probe_declines(bench: Bench) -> None:
    kit = compiled().kit
    data = pack_blob(msgspec.structs.replace(kit, probe=msgspec.structs.replace(kit.probe, loss=kit.probe.loss + 1)))
    bench.blobs.put(data)
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, kit=ref_of(data))
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "runtime"
    assert "loss" in outcome.detail


def test_missing_data_declines(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "data.npz").unlink()
    [outcome] = reports(bench, visit_for(bench.blobs))
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "data"


@pytest.mark.parametrize("vectors", [{}, {"model": Ref(bytes(32), 4, "int8", delta=True)}])
def test_a_visit_without_a_whole_model_is_unsupported(bench: Bench, vectors: dict[str, Ref]) -> None:
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, vectors=vectors)
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "unsupported"


def test_a_missing_blob_fails(bench: Bench) -> None:
    visit = msgspec.structs.replace(visit_for(bench.blobs).visit, vectors={"model": Ref(bytes(32), 4, "float32")})
    [outcome] = reports(bench, Train(visit, {}))
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "failed"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (DataError("x"), "data"),
        (Unsupported("x"), "unsupported"),
        (MemoryError(), "memory"),
        (RuntimeError("bad_alloc in node"), "memory"),
        (DiskFull("x"), "disk"),
        (StoreError("x"), "failed"),
        (Fault("x"), "failed"),
        (ZeroDivisionError(), "failed"),
    ],
)
def test_each_error_has_its_word(error: Exception, word: str) -> None:
    assert reason_of(error) == word


def test_the_offer_names_the_objectives() -> None:
    assert NAMES == ("sgd",)
