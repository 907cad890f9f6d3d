"""Training a model with state (BatchNorm): compared with torch; only a step's own batch changes the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge_agent.training.fedelmy import shuffled
from sojourn import parts
from sojourn.model.graphs import Graphs
from sojourn.model.vectors import load, save
from sojourn.randomness import batches
from tests.edge_agent.training.kits import MEAN, STD, Bench, compiled_with_state, network_with_state, visit_for

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train, Trained
    from sojourn.protocol.wire import Ref

SAMPLES, BATCH = 50, 7
"""This leaves a last batch of one sample."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SAMPLES)


def visit(bench: Bench, **task: Any) -> Train:
    return visit_for(bench.blobs, model=compiled_with_state(), **({"batch": BATCH, "lr": 0.02} | task))


def vector(bench: Bench, ref: Ref) -> Any:
    return load(bench.blobs, ref, compiled_with_state().kit.model)


def trained(bench: Bench, **task: Any) -> Any:
    return vector(bench, bench.perform(visit(bench, **task)).vectors["model"])


def by_torch(bench: Bench, epochs: int, seed: int, **options: float) -> Any:
    """The same visit in torch; a batch of one sample is normalised by the running statistics."""
    module = network_with_state()
    stepping = torch.optim.SGD(module.parameters(), **options)  # type: ignore[arg-type]
    x = (torch.from_numpy(bench.x[:, None]).float() - MEAN) / STD
    y = torch.from_numpy(bench.y)
    for index in batches(seed, len(y), BATCH, epochs):
        module.train()
        for layer in module:
            if isinstance(layer, nn.BatchNorm1d) and len(index) == 1:
                layer.eval()
        stepping.zero_grad()
        nn.functional.cross_entropy(module(x[index]), y[index]).backward()
        stepping.step()
    state = [b for name, b in module.named_buffers() if not name.endswith("tracked")]
    return torch.cat([each.detach().reshape(-1) for each in (*module.parameters(), *state)]).numpy()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05}], ids=["plain", "momentum and decay"])
def test_visit_matches_torch_even_with_a_last_batch_of_one(bench: Bench, options: dict[str, float]) -> None:
    ours = trained(bench, epochs=3, seed=11, **options)
    np.testing.assert_allclose(ours, by_torch(bench, 3, 11, lr=0.02, **options), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("objective", [parts.Sgd(), parts.Prox(mu=0.5), parts.Dyn(), parts.Sam(), parts.Elmy(models=2)])
def test_state_depends_on_batches_and_not_on_the_objective(bench: Bench, objective: Any) -> None:
    """With a rate near 0 the model hardly changes, and every objective sees the same batches."""
    plain = trained(bench, lr=1e-30, epochs=1)
    size = compiled_with_state().kit.model.trainable_size
    ours = trained(bench, lr=1e-30, epochs=1, objective=objective, weight_decay=0.3, momentum=0.5)
    np.testing.assert_allclose(ours[:size], compiled_with_state().initial[:size], rtol=0, atol=1e-20)
    assert not np.array_equal(plain[size:], compiled_with_state().initial[size:])
    if isinstance(objective, parts.Elmy):  # each of its trainings has a separate order
        assert (ours[size:] != compiled_with_state().initial[size:]).all()
        return
    assert np.array_equal(ours[size:], plain[size:])


def test_next_visit_continues_from_the_received_state(bench: Bench) -> None:
    model, spec = compiled_with_state(), compiled_with_state().kit.model
    handed = model.initial.copy()
    handed[spec.trainable_size :] = 3.0
    work = visit(bench, lr=1e-30)
    ref = save(bench.blobs, handed, "float32", spec)
    work = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors={"model": ref}))
    ended = vector(bench, bench.perform(work).vectors["model"])
    steps = -(-SAMPLES // BATCH)
    first, second = ended[spec.trainable_size :], trained(bench, lr=1e-30)[spec.trainable_size :]
    start = np.split(model.initial[spec.trainable_size :], [8])
    # Each step keeps 1 - momentum of the state, except for rows in the last batch of one sample.
    kept = [(0.9**steps) * (3.0 - start[0]), 0.7 ** (steps - 1) * (3.0 - start[1])]
    np.testing.assert_allclose(first - second, np.concatenate(kept), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_lossy_encoding_keeps_the_state_exact(bench: Bench, encoding: str) -> None:
    size = compiled_with_state().kit.model.trainable_size
    exact, coarse = trained(bench), trained(bench, encoding=encoding)
    assert np.array_equal(coarse[size:], exact[size:])
    apart = np.abs(coarse[:size] + compiled_with_state().initial[:size] - exact[:size]).max()
    assert 0 < apart < 0.01


def test_objective_vectors_and_memory_exclude_the_state(bench: Bench) -> None:
    spec = compiled_with_state().kit.model
    control = save(bench.blobs, np.full(spec.size, 0.01, np.float32), "float32", spec)
    work = visit(bench, objective=parts.Scaffold())
    named = work.visit.vectors | {"control": control}
    done: Trained = bench.perform(
        msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors=named))
    )
    for ref in (done.vectors["control_delta"], done.memory["control"]):
        found = vector(bench, ref)
        assert len(found) == spec.size
        assert not found[spec.trainable_size :].any()
        assert found[: spec.trainable_size].any()


def test_shuffled_start_changes_only_trained_parameters() -> None:
    model, spec = compiled_with_state().initial, compiled_with_state().kit.model
    model = (model + np.arange(len(model))).astype(np.float32)
    other = shuffled(model, spec, 4)
    assert np.array_equal(other[spec.trainable_size :], model[spec.trainable_size :])
    assert not np.array_equal(other[: spec.trainable_size], model[: spec.trainable_size])


def test_prediction_uses_the_state() -> None:
    made, x = compiled_with_state(), np.ones((2, 1, 8, 8), np.float32)
    other = made.initial.copy()
    other[made.kit.model.trainable_size :] *= 2
    other[made.kit.model.trainable_size :] += 1
    assert not np.allclose(Graphs(made.kit).logits(made.initial, x), Graphs(made.kit).logits(other, x))
