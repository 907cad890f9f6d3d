"""FedBN's visit compared with its pseudo-code: the trained, stored and sent parameters, in every encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.training.fedbn import NORMS
from edge_agent.training.held_out import parted
from sojourn.model.graphs import Graphs
from sojourn.model.layers import norm_spec, norms_of, with_norms
from sojourn.model.vectors import load, save
from sojourn.parts import LocalNorms, Sgd
from sojourn.randomness import batches
from tests.edge_agent.training.kits import Bench, compiled, compiled_with_state, visit_for

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train, Trained
    from sojourn.protocol.spec import ModelSpec

SEED, LR, BATCH = 11, 0.05, 8


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def spec() -> ModelSpec:
    return compiled_with_state().kit.model


def visit(bench: Bench, test: float = 0.2, **task: Any) -> Train:
    how: dict[str, Any] = {"epochs": 2, "lr": LR, "batch": BATCH, "seed": SEED, "model": compiled_with_state()}
    return visit_for(bench.blobs, **(how | {"objective": LocalNorms(test=test)} | task))


def again(work: Train, before: Trained, received: Any, bench: Bench) -> Train:
    """The next visit, with another received model and the memory of the first."""
    vectors = {"model": save(bench.blobs, received, "float32", spec())}
    order = msgspec.structs.replace(work.visit, vectors=vectors)
    return msgspec.structs.replace(work, visit=order, memory=before.memory, remembered=1)


def written_out(bench: Bench, start: Any, rows: Any) -> Any:
    """Two epochs of plain SGD on these rows, with the kit's gradient."""
    graphs, w = Graphs(compiled_with_state().kit, 1), start.copy()
    for index in batches(SEED, len(rows), BATCH, 2):
        x, y = bench.x[rows[index]][:, None].astype(np.float32), bench.y[rows[index]]
        _, gradient, state = graphs.loss_gradient_and_state(w, x, y)
        w = np.concatenate([w[: spec().trainable_size] - np.float32(LR) * gradient, state])
    return w


def trained_rows(bench: Bench, test: float) -> Any:
    class Rows:
        y = np.arange(len(bench.y))

        def __len__(self) -> int:
            return len(self.y)

        def batch(self, index: Any, dtype: str) -> Any:
            raise NotImplementedError

    return parted(Rows(), 0.0, test).training.y


@pytest.mark.parametrize("test", [0.0, 0.2])
def test_two_visits_match_their_pseudo_code(bench: Bench, test: float) -> None:
    work, rows, w_0 = visit(bench, test), trained_rows(bench, test), compiled_with_state().initial
    first = bench.perform(work)
    trained = written_out(bench, w_0, rows)
    sent = load(bench.blobs, first.vectors["model"], spec())
    np.testing.assert_allclose(sent, with_norms(trained, norms_of(w_0, spec()), spec()), atol=2e-6)
    kept = load(bench.blobs, first.memory[NORMS], norm_spec(spec()))
    np.testing.assert_allclose(kept, norms_of(trained, spec()), atol=2e-6)

    received = w_0 + np.float32(0.01)  # as if other devices had changed the model, including its initial layers
    second = bench.perform(again(work, first, received, bench))
    expected = written_out(bench, with_norms(received, kept, spec()), rows)
    sent = load(bench.blobs, second.vectors["model"], spec())
    np.testing.assert_allclose(sent, with_norms(expected, norms_of(received, spec()), spec()), atol=2e-6)
    assert second.metrics["remembered"] == 1.0
    shared = bench.perform(again(work, msgspec.structs.replace(first, memory={}), received, bench))
    assert shared.vectors != second.vectors  # the stored layers affect the shared ones


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_received_norms_are_returned_in_every_encoding(bench: Bench, encoding: str) -> None:
    done, w_0 = bench.perform(visit(bench, encoding=encoding)), compiled_with_state().initial
    ref = done.vectors["model"]
    sent, size = load(bench.blobs, ref, spec()), spec().trainable_size
    whole = np.concatenate([sent[:size] + (w_0[:size] if ref.delta else 0), sent[size:]])
    assert norms_of(whole, spec()).tobytes() == norms_of(w_0, spec()).tobytes()
    assert not np.array_equal(whole, w_0)


def test_without_batchnorm_and_test_part_equals_plain_visit(bench: Bench) -> None:
    plain = bench.train(epochs=2)
    ours = bench.train(epochs=2, objective=LocalNorms(test=0.0))
    assert ours.vectors == plain.vectors
    assert ours.memory == {}
    assert set(ours.metrics) == set(plain.metrics)
    assert bench.train(epochs=2, objective=LocalNorms(test=0.2)).vectors != plain.vectors
    assert bench.train(epochs=2, objective=Sgd(), model=compiled()).vectors == plain.vectors


def test_device_reports_own_model_accuracy_before_and_after(bench: Bench) -> None:
    done = bench.perform(visit(bench))
    graphs, kept = Graphs(compiled_with_state().kit, 1), load(bench.blobs, done.memory[NORMS], norm_spec(spec()))
    held = np.setdiff1d(np.arange(len(bench.y)), trained_rows(bench, 0.2))
    x, y = bench.x[held][:, None].astype(np.float32), bench.y[held]

    def share(w: Any) -> float:
        return float(np.mean(graphs.logits(w, x).argmax(axis=1) == y))

    own = with_norms(load(bench.blobs, done.vectors["model"], spec()), kept, spec())
    assert done.metrics["own_accuracy"] == pytest.approx(share(own))
    assert done.metrics["merged_accuracy"] == pytest.approx(share(compiled_with_state().initial))
    assert done.metrics["own_loss"] == pytest.approx(graphs.loss(own, x, y), rel=1e-5)
    assert not [name for name in bench.perform(visit(bench, 0.0)).metrics if "own" in name or "merged" in name]


def test_device_with_lost_norms_starts_with_received_ones(bench: Bench, caplog: Any) -> None:
    work = visit(bench)
    first = bench.perform(work)
    lost = {NORMS: msgspec.structs.replace(first.memory[NORMS], digest=b"x" * 32)}
    done = bench.perform(msgspec.structs.replace(work, memory=lost, remembered=1))
    assert done.vectors == first.vectors
    assert done.metrics["remembered"] == 0.0
    assert "objective's memory is lost" in caplog.text
