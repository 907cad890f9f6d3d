"""Tests of MA-Echo's server half: limiting cases, its pseudo-code, and a whole job."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.finishers.finishing import finish
from coordinator.finishers.ma_echo import by_class, move
from coordinator.finishers.task import FinishTask, MemberModel
from coordinator.jobs.settings import read_job
from edge_agent.training.ma_echo import narrow, projections
from edge_agent.training.trainer import prepare
from sojourn.errors import ConfigError, JobError
from sojourn.parts import Echo, EchoServer
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, MoreGraphs, TapGraph, TapLayer, TensorSpec
from tests.fleet_sim.small_fleet import SmallFleet, _compiled, initial_model, job, run, shards
from tests.fleet_sim.written_out import PLAIN, SITES, train
from tests.sojourn.protocol.examples import kit_without_graphs

SPEC = ModelSpec(
    tuple(TensorSpec(*it) for it in [("w.weight", (4, 3)), ("w.bias", (4,)), ("norm", (5,)), ("last.weight", (2, 4))])
)
LAYERS = (TapLayer("w.weight", "w.bias", (3,)), TapLayer("last.weight", "", (4,)))
KIT = msgspec.structs.replace(kit_without_graphs(SPEC, InputSpec((3,))), more=MoreGraphs(TapGraph(b"", LAYERS)))
RANDOM = np.random.default_rng(5)
MODELS = [RANDOM.normal(size=SPEC.size).astype(np.float32) for _ in range(3)]
TEXT = 'name = "job"\nstrategy = "ma-echo"\ndata = { classes = ["x", "y"], input = [3] }\n'


def symmetric(seed: int) -> np.ndarray[Any, Any]:
    """Return a projection that a device may report: between 0 and I."""
    p = np.eye(4)
    for r in np.random.default_rng(seed).normal(size=(2, 4)):
        narrow(p, r, 0.05, True)
    return p


def task_with(ps: Any, had: Any = ((1, 1),) * 3, models: Any = MODELS, text: str = TEXT) -> FinishTask:
    stored = [np.concatenate([np.ravel(p), each]).astype(np.float32) for p, each in zip(ps, had, strict=True)]
    members = [
        MemberModel(f"dev-{at}", 1.0, lambda at=at: models[at].copy(), {"projections": lambda at=at: stored[at]})  # type: ignore[misc]
        for at in range(len(models))
    ]
    return FinishTask(members, np.zeros(SPEC.size, np.float32), KIT, read_job(text, "job"), 0)


def made(task: FinishTask, **settings: Any) -> dict[str, np.ndarray[Any, Any]]:
    model = finish(EchoServer(**settings), task).model
    assert model is not None
    return SPEC.split(model)


def mean(models: Any = MODELS) -> dict[str, np.ndarray[Any, Any]]:
    return SPEC.split(np.stack(models).mean(0, dtype=np.float64).astype(np.float32))


def check_mean(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("ps", [[np.zeros((4, 4))] * 3, [np.eye(4)] * 3, [symmetric(1)] * 3], ids=["0", "I", "equal"])
def test_equal_projections_give_the_mean(ps) -> None:
    check_mean(made(task_with(ps), tau=7, lam=0.7), mean())


def test_zero_steps_or_one_device_give_the_mean() -> None:
    differ = [symmetric(seed) for seed in range(3)]
    check_mean(made(task_with(differ), tau=0), mean())
    alone = made(task_with(differ[:1], ((1, 1),), MODELS[:1]), tau=9)
    check_mean(alone, SPEC.split(MODELS[0]))


def test_exact_projections_keep_outputs_of_every_device() -> None:
    """Two devices with one direction each in four dimensions: the mean is far off, the result is not."""
    inputs = [RANDOM.normal(size=(1, 4)), RANDOM.normal(size=(2, 4))]
    weights = [RANDOM.normal(size=(3, 4)) for _ in inputs]
    along = []
    for rows in inputs:
        p = np.eye(4)
        for r in rows:
            narrow(p, r, 1e-12, True)
        along.append(lambda d, p=p: d @ p)
    found = move(weights, along, EchoServer(tau=4000, lam=1.0))
    plain = move(weights, along, EchoServer(tau=0))
    for x, w in zip(inputs, weights, strict=True):
        assert np.abs(x @ found.T - x @ w.T).max() < 1e-8
        assert np.abs(x @ plain.T - x @ w.T).max() > 0.1


@pytest.mark.parametrize("norm", [False, True])
def test_steps_match_pseudo_code(norm) -> None:
    ps = [symmetric(seed) for seed in range(3)]
    found = made(task_with(ps), tau=3, lam=0.9, norm=norm)
    w = [np.column_stack([SPEC.split(m)["w.weight"], SPEC.split(m)["w.bias"]]).astype(np.float64) for m in MODELS]
    ps = [p.astype(np.float32).astype(np.float64) for p in ps]
    whole = sum(w) / 3
    for _ in range(3):
        whole = whole + 0.9 * sum((whole - w[i]) @ (ps[i] - np.eye(4)) for i in range(3)) / 3
        for i in range(3):
            step = (whole - w[i]) @ ps[i]
            if norm:
                step = np.stack([row / np.sqrt(row @ row) for row in step])
            w[i] = w[i] + 0.9 * step
    np.testing.assert_allclose(np.column_stack([found["w.weight"], found["w.bias"]]), sum(w) / 3, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["norm"], mean()["norm"], rtol=0, atol=1e-6)  # no layer of weights


def test_every_parameter_matters_and_low_rank_approximates() -> None:
    ps = [symmetric(seed) for seed in range(3)]
    plain = made(task_with(ps), tau=3, lam=0.9)["w.weight"]
    for knob in ({"tau": 4}, {"lam": 1.0}, {"norm": True}):
        assert not np.array_equal(made(task_with(ps), **{"tau": 3, "lam": 0.9, **knob})["w.weight"], plain)
    values = [np.linalg.eigh(np.eye(4) - p) for p in ps]
    qs = [vectors[:, 2:] * np.sqrt(found[2:]) for found, vectors in values]
    few = made(task_with(qs, text=TEXT + "objective = { rank = 2 }\n"), tau=3, lam=0.9)["w.weight"]
    np.testing.assert_allclose(few, plain, rtol=0, atol=1e-5)


def test_last_layer_row_uses_only_devices_with_its_class() -> None:
    rows = [np.full((3, 2), value) for value in (1.0, 2.0, 6.0)]
    had = [np.array(it, bool) for it in ([1, 0, 0], [1, 1, 0], [0, 1, 0])]
    # no device has the last class: all count
    assert by_class(rows, had).tolist() == [[1.5, 1.5], [4.0, 4.0], [3.0, 3.0]]
    found = made(task_with([np.eye(4)] * 3, ((1, 0), (1, 0), (0, 0))), tau=1)["last.weight"]
    lasts = [SPEC.split(model)["last.weight"] for model in MODELS]
    np.testing.assert_allclose(found[0], (lasts[0][0] + lasts[1][0]) / 2, atol=1e-6)
    np.testing.assert_allclose(found[1], mean()["last.weight"][1], atol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 2.0, -1.0])
def test_diverging_step_size_is_rejected(lam) -> None:
    with pytest.raises(ConfigError, match="lam"):
        read_job(f"{TEXT}finisher = {{ lam = {lam} }}", "job")


def test_memory_limit_rejects_large_projections() -> None:
    with pytest.raises(JobError, match=r"layer w.weight take .* 3 devices, and finisher.memory = 0.0001"):
        made(task_with([np.eye(4)] * 3), memory=0.0001)


def test_echo_objective_and_finisher_need_each_other() -> None:
    for text in ('objective = "sgd"', 'finisher = "none"', 'schedule = "ring"', 'arranger = "chain"'):
        with pytest.raises(ConfigError, match="echo"):
            read_job(f"{TEXT}{text}\n", "job")


QUICK = {**PLAIN, "strategy": "ma-echo", "rounds": None, "finisher__tau": 4, "finisher__lam": 0.5}


def kit() -> Kit:
    compiled, kept = _compiled(None, "ma-echo")
    return unpack_blob(kept.read(compiled.kit.digest), Kit)


def test_whole_job_matches_pseudo_code() -> None:
    settings = Echo(form="exact", start="received", a_dense=0.5)
    found = run(job(**QUICK, objective__form="exact", objective__start="received", objective__a_dense=0.5), SITES)
    assert found.state.status == "done", found.state.detail
    names = [f"dev-{number}" for number in range(6)]
    models = [train(initial_model(), name, 1)[0].astype(np.float32) for name in names]
    reports = [
        projections(settings, prepare(kit(), shards(6)[name], 1), model, 32)
        for name, model in zip(names, models, strict=True)
    ]
    d = 65
    ps = [each[: d * d].reshape(d, d).astype(np.float64) for each in reports]
    w = [_rows(model) for model in models]
    whole = sum(w) / 6
    for _ in range(4):
        whole = whole + 0.5 * sum((whole - w[i]) @ (ps[i] - np.eye(d)) for i in range(6)) / 6
        w = [w[i] + 0.5 * (whole - w[i]) @ ps[i] for i in range(6)]
    np.testing.assert_allclose(_rows(found.model), sum(w) / 6, rtol=0, atol=5e-5)
    metrics = found.state.history[0].metrics
    assert {"mean_accuracy", "together_accuracy"} <= metrics.keys()


def _rows(model: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    tensors = list(kit().model.split(model).values())
    return np.column_stack([tensors[0], tensors[1]]).astype(np.float64)


def test_device_that_shares_no_projections_is_named() -> None:
    fleet = SmallFleet(SITES, shy=("dev-2",))
    fleet.submit(job(**{**QUICK, "fleet__devices": 5}))
    state = fleet.run("job")
    assert state.status == "done", state.detail
    assert state.history[0].visits == 5
    assert any('set shares = ["projections"]' in line and "dev-2" in line for line in state.history[0].failures)
