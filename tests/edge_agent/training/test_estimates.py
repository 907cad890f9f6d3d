"""Estimation on a device: the same numbers as the server would compute, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch

from edge_agent.training import estimates
from edge_agent.training.visit_vectors import Unsupported
from sojourn import parts
from sojourn.errors import InvalidBlob
from sojourn.model.exemplars import Exemplars, signature
from sojourn.model.graphs import Graphs
from sojourn.model.layers import classifier_weights
from sojourn.protocol.envelope import pack_blob, unpack_blob
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import CLASSES, MEAN, STD, Bench, compiled, network, visit_for, with_vectors

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def exemplars() -> Exemplars:
    draw = np.random.default_rng(9)
    x = draw.integers(0, 17, (70, 1, 8, 8), dtype=np.uint8)
    return Exemplars.of(x, draw.integers(0, 2, 70))  # none of class 2


def with_exemplars(work: Train, blobs: MemoryBlobs) -> Train:
    data = pack_blob(exemplars())
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    visit = msgspec.structs.replace(work.visit, vectors=work.visit.vectors | {"exemplars": ref})
    return msgspec.structs.replace(work, visit=visit)


def estimate(bench: Bench, estimator: parts.Part | None, **task: Any) -> Any:
    work = visit_for(bench.blobs, kind="estimate", estimator=estimator, **({"epochs": 2} | task))
    return bench.perform(with_exemplars(work, bench.blobs))


@pytest.mark.parametrize("form", [parts.SignatureEstimator, parts.ConfidenceEstimator])
def test_signature_is_equal_on_device_and_server(bench: Bench, form: Any) -> None:
    sent = estimate(bench, form(where="server"))
    assert sent.signature is None
    model = bench.load(sent.vectors["model"])
    there = signature(Graphs(compiled().kit, 1), model, exemplars(), len(CLASSES))
    here = estimate(bench, form(where="device"))
    assert here.signature == there
    assert here.vectors == {}
    assert here.metrics["loss"] == sent.metrics["loss"]
    assert there[2] == 0.0
    assert 0 < there[0] < 1


@pytest.mark.parametrize("layers", ["all", "last-two", "last"])
def test_classifier_is_equal_on_device_and_server(bench: Bench, layers: Any) -> None:
    sent = estimate(bench, parts.ClassifierEstimator(where="server", layers=layers))
    model = bench.load(sent.vectors["model"])
    here = estimate(bench, parts.ClassifierEstimator(where="device", layers=layers))
    assert here.vectors == {}
    np.testing.assert_array_equal(
        np.array(here.signature, np.float32), classifier_weights(compiled().kit, model, layers)
    )
    assert len(here.signature) == 3 * 64


def test_classifier_too_large_for_a_message_is_unsupported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "MAX_SIGNATURE", 191)
    with pytest.raises(Unsupported, match=r"have 192 parameters, a message holds 191.*server"):
        estimate(bench, parts.ClassifierEstimator(where="device"))


def test_class_counts_equal_label_histogram_without_training(bench: Bench) -> None:
    outcome = estimate(bench, parts.ClassCountEstimator())
    assert outcome.signature == tuple(float((bench.y == number).sum()) for number in range(3))
    assert sum(outcome.signature) == outcome.samples == 50
    assert outcome.vectors == {}
    assert "steps" not in outcome.metrics


def test_class_without_samples_counts_zero(tmp_path: Path) -> None:
    assert estimate(Bench(tmp_path, classes=("owl",)), parts.ClassCountEstimator()).signature == (0.0, 0.0, 50.0)


@pytest.mark.parametrize("estimator", [parts.SizeEstimator(), parts.UpdateEstimator(epochs=0)])
def test_sample_count_is_reported_without_training(bench: Bench, estimator: Any) -> None:
    outcome = estimate(bench, estimator)
    assert (outcome.samples, outcome.vectors, outcome.signature, outcome.memory) == (50, {}, None, {})
    assert "steps" not in outcome.metrics


@pytest.mark.parametrize(
    "estimator",
    [
        None,
        parts.NoEstimator(),
        parts.UpdateEstimator(epochs=1),
        parts.OwnEstimator(part="package.module:Class"),
        parts.SignatureEstimator(),
        parts.ConfidenceEstimator(),
        parts.ClassifierEstimator(),
    ],
)
def test_other_estimators_return_the_model_for_the_server(bench: Bench, estimator: Any) -> None:
    outcome = estimate(bench, estimator)
    assert outcome.vectors == bench.train(epochs=2).vectors
    assert outcome.signature is None


@pytest.mark.parametrize("objective", [parts.Prox(mu=5.0), parts.Dyn(a=3.0), parts.Scaffold(), parts.Elmy()])
def test_estimation_trains_plainly_and_keeps_memory_unchanged(bench: Bench, objective: Any) -> None:
    work = visit_for(bench.blobs, kind="estimate", estimator=parts.UpdateEstimator(), objective=objective)
    drawn = np.ones(compiled().kit.model.size, np.float32)
    kept = with_vectors(work, bench.blobs, h=drawn).visit.vectors["h"]
    outcome = bench.perform(msgspec.structs.replace(work, memory={"h": kept}, remembered=4))
    assert outcome.vectors == bench.train().vectors
    assert outcome.memory == {}
    assert "remembered" not in outcome.metrics


def test_signature_on_device_requires_exemplars(bench: Bench) -> None:
    with pytest.raises(Unsupported, match="contains none"):
        bench.train(kind="estimate", estimator=parts.SignatureEstimator(where="device"))


def test_signature_equals_mean_softmax_in_torch() -> None:
    x, y = exemplars().arrays()
    module = network()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(compiled().initial.copy()), module.parameters())
    with torch.no_grad():
        answers = torch.softmax(module((torch.from_numpy(x.astype(np.float32)) - MEAN) / STD).double(), 1).numpy()
    expected = [answers[y == 0, 0].mean(), answers[y == 1, 1].mean(), 0.0]
    found = signature(Graphs(compiled().kit, 1), compiled().initial, exemplars(), len(CLASSES))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_inconsistent_exemplars_are_refused() -> None:
    good = exemplars()
    assert unpack_blob(pack_blob(good), Exemplars) == good
    for bad in ({"x": good.x[1:]}, {"y": good.y[1:]}, {"shape": (70, 64, 2)}):
        with pytest.raises(InvalidBlob):
            msgspec.structs.replace(good, **bad).arrays()
    wild = msgspec.structs.replace(good, y=(2, *good.y[1:]))
    with pytest.raises(InvalidBlob, match="2 classes"):
        signature(Graphs(compiled().kit, 1), compiled().initial, wild, 2)


def test_training_ignores_exemplars(bench: Bench) -> None:
    outcome = bench.perform(with_exemplars(visit_for(bench.blobs), bench.blobs))
    assert outcome.signature is None
    assert outcome.vectors == bench.train().vectors
