"""MetaFed's visit compared with its pseudo-code in torch: phases, flags, the start rule, and the pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from edge_agent.training.held_out import parted
from edge_agent.training.metafed import GOOD, MINE, pull_towards
from edge_agent.training.visit_vectors import Unsupported
from sojourn.model.layers import norms_of, with_norms
from sojourn.model.vectors import load, save
from sojourn.parts import Common
from sojourn.protocol.wire import visit_steps
from sojourn.randomness import batches
from tests.edge_agent.training.kits import MEAN, STD, Bench, compiled, compiled_with_state, network, visit_for
from tests.edge_agent.training.test_model_pool import Numbers
from tests.edge_agent.training.test_second_stream import kit_for

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train, Trained

LR, BATCH, SEED = 0.1, 8, 11
INITIAL = parameters_to_vector(network().parameters()).detach().numpy()
U = INITIAL * np.float32(0.9)
"""The model that a device receives."""
OWN = INITIAL * np.float32(1.1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def visit(bench: Bench, settings: Common, memory: dict[str, Any] | None = None, **how: Any) -> Train:
    work = visit_for(bench.blobs, objective=settings, model=kit_for(settings.compiled), lr=LR, batch=BATCH, **how)
    spec = compiled().kit.model
    order = msgspec.structs.replace(work.visit, vectors={"model": save(bench.blobs, U, "float32", spec)})
    kept = {name: save(bench.blobs, vector, "float32", spec) for name, vector in (memory or {}).items()}
    return msgspec.structs.replace(work, visit=order, memory=kept, remembered=len(kept))


def done(bench: Bench, settings: Common, memory: dict[str, Any] | None = None, **how: Any) -> tuple[Any, str, Any]:
    """Return the sent model, the name of the device's stored model, and that model."""
    result: Trained = bench.perform(visit(bench, settings, memory, **how))
    ((name, ref),) = result.memory.items()
    return bench.load(result.vectors["model"]), name, bench.load(ref)


def settings(phase: Any, **changes: Any) -> Common:
    return Common(**({"warmup": 3, "validation": 0.2, "test": 0.2, "lam": 2.0, "phase": phase} | changes))


def module_of(vector: Any) -> nn.Sequential:
    module, at = network(), 0
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(vector[at : at + parameter.numel()]).reshape(parameter.shape))
            at += parameter.numel()
    return module


def by_torch(bench: Bench, it: Common, start: Any, epochs: int, pull: float = 0.0) -> Any:
    """CE + pull MSE(phi(w, x), phi(u, x)), plain SGD on the samples that are not held out."""
    rows = parted(Numbers(len(bench.y)), it.validation, it.test).training.y
    inputs = torch.from_numpy((bench.x[rows, None].astype(np.float32) - MEAN) / STD)
    labels, model, u = torch.from_numpy(bench.y[rows]), module_of(start), module_of(U)
    for index in batches(SEED, len(rows), BATCH, epochs):
        features, frozen = model[:-1](inputs[index]), u[:-1](inputs[index]).detach()
        loss = nn.functional.cross_entropy(model[-1](features), labels[index])
        loss = loss + pull * nn.functional.mse_loss(features, frozen)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(LR * parameter.grad)  # type: ignore[operator]
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def validation(bench: Bench, it: Common, w: Any) -> float:
    rows = parted(Numbers(len(bench.y)), it.validation, it.test).validation
    assert rows is not None
    inputs = torch.from_numpy((bench.x[rows.y, None].astype(np.float32) - MEAN) / STD)
    with torch.no_grad():
        return float((module_of(w)(inputs).argmax(1).numpy() == bench.y[rows.y]).mean())


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, atol=3e-6)


def test_warm_up_trains_alone_and_returns_received_model(bench: Bench) -> None:
    it = settings("warm-up")
    sent, name, own = done(bench, it, epochs=2)
    assert sent.tobytes() == U.tobytes()
    close(own, by_torch(bench, it, U, 3))
    assert name == (GOOD if validation(bench, it, own) > 0.6 else MINE)


def test_device_without_flag_copies_the_received_model(bench: Bench) -> None:
    it = settings("accumulate")
    sent, _, own = done(bench, it, {MINE: OWN}, epochs=2)
    assert sent.tobytes() == own.tobytes()
    close(sent, by_torch(bench, it, U, 2))


def test_flagged_device_trains_its_own_model_with_pull(bench: Bench) -> None:
    it = settings("accumulate")
    sent, name, own = done(bench, it, {GOOD: OWN}, epochs=2)
    close(sent, by_torch(bench, it, OWN, 2, pull=2.0))
    assert np.abs(sent - by_torch(bench, it, OWN, 2)).max() > 1e-3
    assert (name, own.tobytes()) == (GOOD, sent.tobytes())  # the flag stays, whatever the accuracy


def test_first_device_of_a_ring_has_no_pull_and_second_has(bench: Bench) -> None:
    it = settings("begin")
    for name in (MINE, GOOD):
        close(done(bench, it, {name: OWN}, epochs=2)[0], by_torch(bench, it, OWN, 2))
    close(done(bench, it, {MINE: OWN}, epochs=2, earlier=1)[0], by_torch(bench, it, U, 2))
    close(done(bench, it, {GOOD: OWN}, epochs=2, earlier=1)[0], by_torch(bench, it, OWN, 2, pull=2.0))
    close(done(bench, it, epochs=2)[0], by_torch(bench, it, U, 2))  # the device has no own model


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_personalise_pull_follows_accuracy_gap_of_received_model(bench: Bench, floor: float) -> None:
    it = settings("personalise", floor=floor)
    theirs, mine = validation(bench, it, U), validation(bench, it, OWN)
    pull = 0.0 if theirs <= mine and theirs < floor else 2.0 * 10 ** min(1.0, 5 * (theirs - mine)) / 10
    sent, name, own = done(bench, it, {GOOD: OWN}, epochs=2)
    assert (sent.tobytes(), name) == (U.tobytes(), GOOD)
    close(own, by_torch(bench, it, OWN, 2, pull=pull))
    close(done(bench, it, {MINE: OWN}, epochs=2)[2], by_torch(bench, it, U, 2))


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [(0.75, 0.5, 3.0), (1.0, 0.0, 3.0), (0.5, 0.5, 0.3), (0.9, 0.9, 0.3), (0.4, 0.4, 0.0), (0.3, 0.6, 0.0),
     (0.4, 0.3, 3.0 * 10**0.5 / 10), (0.6, 0.8, 0.03)],
)  # fmt: skip
def test_pull_is_lam_when_a_fifth_better_and_a_tenth_when_equal(theirs: float, mine: float, expected: float) -> None:
    assert pull_towards(Common(lam=3.0, floor=0.5), theirs, mine) == pytest.approx(expected)


def test_flag_is_set_by_accuracy_and_never_cleared(bench: Bench) -> None:
    assert done(bench, settings("accumulate", threshold=1.1), {MINE: OWN})[1] == MINE
    assert done(bench, settings("accumulate", threshold=-0.5), {MINE: OWN})[1] == GOOD
    assert done(bench, settings("accumulate", threshold=1.1), {GOOD: OWN})[1] == GOOD
    without = settings("accumulate", validation=0.0, threshold=0.0)
    assert done(bench, without, {MINE: OWN})[1] == MINE  # no held-out samples: accuracy 0


def test_device_can_keep_its_own_batchnorm_layers(bench: Bench) -> None:
    spec, w_0 = compiled_with_state().kit.model, compiled_with_state().initial
    own = np.abs(w_0) + np.float32(0.5)
    results = {}
    for shares in (True, False):
        it = settings("accumulate", share_norms=shares)
        work = visit_for(bench.blobs, objective=it, model=compiled_with_state(), lr=1e-9, batch=50)
        work = msgspec.structs.replace(work, memory={MINE: save(bench.blobs, own, "float32", spec)}, remembered=1)
        results[shares] = load(bench.blobs, bench.perform(work).vectors["model"], spec)
    size = spec.trainable_size
    close(results[True][:size], w_0[:size])
    close(results[False][:size], with_norms(w_0, norms_of(own, spec), spec)[:size])


def test_step_count_matches_the_expected_visit_steps(bench: Bench) -> None:
    for phase in ("warm-up", "accumulate"):
        work = visit(bench, settings(phase), epochs=2)
        expected = visit_steps(work.visit.task, len(bench.y), 0)
        assert bench.perform(work).metrics["steps"] == expected


def test_kit_without_feature_graph_is_refused_only_if_needed(bench: Bench) -> None:
    spec = compiled().kit.model
    work = visit_for(bench.blobs, objective=settings("accumulate"), lr=LR, batch=BATCH)
    bench.perform(work)
    kept = {GOOD: save(bench.blobs, OWN, "float32", spec)}
    with pytest.raises(Unsupported, match="no graph that compares features"):
        bench.perform(msgspec.structs.replace(work, memory=kept, remembered=1))


def test_own_model_metrics_come_with_validation_and_test_shares(bench: Bench) -> None:
    it = settings("accumulate")
    result = bench.perform(visit(bench, it, {MINE: OWN}))
    own = bench.load(result.memory[next(iter(result.memory))])
    assert result.metrics["own_validation"] == pytest.approx(validation(bench, it, own))
    assert 0 <= result.metrics["own_accuracy"] <= 1
    measured = bench.perform(visit(bench, settings("accumulate", validation=0.0, test=0.0))).metrics
    assert not [name for name in measured if name.startswith("own_")]
