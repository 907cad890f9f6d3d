"""FedMMD, MOON and FedFusion: whole jobs against the written-out pseudo-code, their limits, and every setting."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from sojourn.model import vectors
from sojourn.parts import Fusion, FusionMean, Mmd, Moon
from sojourn.protocol.task import ABILITIES, MODEL_TWO_STREAM, able, leads
from sojourn.protocol.wire import Offer
from sojourn.randomness import batches, derive
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import Run, SmallFleet, initial_model, job, kit_of_jobs, run
from tests.fleet_sim.written_out import BATCH, EPOCHS, LR, PLAIN, SITES, ready, size
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Tensors = Mapping[str, Tensor]
    Loss = Callable[[Tensors, Tensor, Tensor], Tensor]

WIDTHS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6]
MMD, MOON, FUSION = Mmd().compiled, Moon(projection=6).compiled, Fusion().compiled
ONE_STEP = {"training__epochs": 1, "training__batch": 200}
SMALL = {"fedmmd": {}, "moon": {"objective__projection": 6}, "fedfusion": {}}


@cache
def done(strategy: str, rounds: int = 2, **changes: Any) -> Run:
    settings = {"strategy": strategy, **PLAIN, **SMALL.get(strategy, {}), "rounds": rounds, **changes}
    ended = run(job(**settings), SITES, one_broker=True)
    assert ended.state.status == "done", ended.state.detail
    return ended


# --- the pseudo-code, in double precision


@cache
def scale() -> tuple[float, float]:
    data = public_data(read_job(job("any"), "any"))
    (mean,), (std,) = data.mean or (0.0,), data.std or (1.0,)
    return mean, std


def rows(x: Any) -> Tensor:
    mean, std = scale()
    return (torch.from_numpy(np.asarray(x, np.float64)).flatten(1) - mean) / std


def hidden(w: Tensors, x: Tensor) -> Tensor:
    return torch.relu(x @ w["1.weight"].T + w["1.bias"])


def visit(start: np.ndarray, spec: Any, device: str, number: int, loss: Loss) -> np.ndarray:
    """Plain SGD from `start` on a loss of (tensors, rows, labels)."""
    it, w = ready(device), torch.from_numpy(start.astype(np.float64))
    seed = derive(derive(0, "train", number), device, 0)
    for index in batches(seed, size(device), BATCH, EPOCHS):
        x, y = it.samples.batch(index, "float32")
        leaf = w.clone().requires_grad_()
        loss(cut(leaf, spec), rows(x), torch.from_numpy(y)).backward()
        w = w - LR * there(leaf.grad)
    return w.numpy()


def cut(vector: Any, spec: Any) -> Tensors:
    vector = torch.as_tensor(np.asarray(vector, np.float64)) if isinstance(vector, np.ndarray) else vector
    parts = torch.split(vector, list(spec.sizes))
    return {tensor.name: part.reshape(tensor.shape) for tensor, part in zip(spec.tensors, parts, strict=True)}


def kernel(a: Tensor, b: Tensor) -> Tensor:
    squares = (a[:, None] - b[None]).square().sum(2)
    return torch.stack([torch.exp(-squares / (2 * s)) for s in WIDTHS]).sum(0).mean()


def mmd(a: Tensor, b: Tensor) -> Tensor:
    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def mean(ends: list[np.ndarray], weights: list[float]) -> np.ndarray:
    return np.average(ends, axis=0, weights=weights)


def gamma_in(objective: Any) -> slice:
    return there(kit_of_jobs(objective).model.gamma)


def without(model: np.ndarray, gamma: slice) -> np.ndarray:
    return np.delete(model, range(gamma.start, gamma.stop))


def agrees(ended: Run, expected: np.ndarray, first: np.ndarray) -> None:
    moved = np.abs(expected - first).max()
    assert moved > 1e-3
    np.testing.assert_allclose(ended.model, expected, rtol=0, atol=3e-5 * max(1.0, moved))


def test_fedmmd_matches_its_pseudo_code() -> None:
    ended, spec, w = done("fedmmd", objective__weight=0.3), kit_of_jobs(MMD).model, initial_model(MMD)

    def logits(tensors: Tensors, x: Tensor) -> Tensor:
        return hidden(tensors, x) @ tensors["3.weight"].T + tensors["3.bias"]

    first = w
    for number, plan in enumerate(ended.fleet.ledger.plans, 1):
        anchor = cut(w.astype(np.float64), spec)

        def loss(tensors: Tensors, x: Tensor, y: Tensor, anchor: Tensors = anchor) -> Tensor:
            apart = mmd(logits(anchor, x), logits(tensors, x))
            return functional.cross_entropy(logits(tensors, x), y) + 0.3 * torch.clamp(apart, min=1e-4)

        who = [tour.hops[0] for tour in plan.tours]
        w = mean([visit(w, spec, device, number, loss) for device in who], [size(device) for device in who])
    agrees(ended, w, first)
    assert np.abs(ended.model - done("fedavg").model).max() > 1e-3


def test_moon_matches_its_pseudo_code() -> None:
    ended, spec, w = done("moon", 3, objective__tau=0.7), kit_of_jobs(MOON).model, initial_model(MOON)

    def p(tensors: Tensors, x: Tensor) -> Tensor:
        inner = torch.relu(hidden(tensors, x) @ tensors["3.first.weight"].T + tensors["3.first.bias"])
        return inner @ tensors["3.second.weight"].T + tensors["3.second.bias"]

    first, own = w, dict[str, np.ndarray]()
    for number, plan in enumerate(ended.fleet.ledger.plans, 1):
        ends = []
        who = [tour.hops[0] for tour in plan.tours]
        for device in who:
            received, last = cut(w.astype(np.float64), spec), own.get(device)

            def loss(tensors: Tensors, x: Tensor, y: Tensor, received: Tensors = received, last: Any = last) -> Tensor:
                here = p(tensors, x)
                plain = functional.cross_entropy(here @ tensors["3.last.weight"].T + tensors["3.last.bias"], y)
                if last is None:
                    return plain
                others = [p(received, x), p(cut(last, spec), x)]
                likeness = torch.stack([functional.cosine_similarity(here, each) for each in others], 1) / 0.7
                return plain + 5 * functional.cross_entropy(likeness, torch.zeros(len(x), dtype=torch.int64))

            ends.append(visit(w, spec, device, number, loss))
            own[device] = ends[-1]
        w = mean(ends, [size(device) for device in who])
    agrees(ended, w, first)


def test_fedfusion_matches_its_pseudo_code() -> None:
    ended, spec, w = done("fedfusion", 3), kit_of_jobs(FUSION).model, initial_model(FUSION)
    first, gamma = w, gamma_in(FUSION)
    for number, plan in enumerate(ended.fleet.ledger.plans, 1):
        anchor = cut(w.astype(np.float64), spec)

        def loss(tensors: Tensors, x: Tensor, y: Tensor, anchor: Tensors = anchor) -> Tensor:
            part = tensors["3.fusion.gamma"]
            fused = part * hidden(anchor, x) + (1 - part) * hidden(tensors, x)
            return functional.cross_entropy(fused @ tensors["3.layer.weight"].T + tensors["3.layer.bias"], y)

        ends = [visit(w, spec, tour.hops[0], number, loss) for tour in plan.tours]
        before, w = w, np.mean(ends, axis=0)
        w[gamma] = 0.1 * w[gamma] + 0.9 * before[gamma]
    agrees(ended, w, first)
    assert np.abs(ended.model[gamma]).max() > 0
    np.testing.assert_array_equal(ended.fleet.vector("before"), done("fedfusion", 2).model)


# --- limits


def test_weight_zero_equals_fedavg_bit_for_bit() -> None:
    assert np.array_equal(done("fedmmd", objective__weight=0).model, done("fedavg").model)
    assert not np.array_equal(done("fedmmd", objective__weight=1e-3).model, done("fedavg").model)


@pytest.mark.parametrize("how", [{}, {"objective__distance": "l2"}])
def test_fedmmd_equals_fedavg_for_one_local_step_only(how: dict[str, Any]) -> None:
    weight = {"objective__weight": 50.0, **how}
    plain = done("fedavg", 1, **ONE_STEP).model
    np.testing.assert_allclose(done("fedmmd", 1, **ONE_STEP, **weight).model, plain, rtol=0, atol=1e-6)
    twice = {**ONE_STEP, "training__epochs": 2}
    assert np.abs(done("fedmmd", 1, **twice, **weight).model - done("fedavg", 1, **twice).model).max() > 1e-4


def test_first_moon_visit_has_no_contrastive_term() -> None:
    assert np.array_equal(done("moon", 1).model, done("moon", 1, objective__mu=0).model)
    assert not np.array_equal(done("moon", 2).model, done("moon", 2, objective__mu=0).model)


def test_first_fedfusion_step_equals_fedavg_and_keeps_gamma() -> None:
    plain = done("fedavg", 1, **ONE_STEP, aggregator__name="uniform-mean").model
    fused, gamma = done("fedfusion", 1, **ONE_STEP).model, gamma_in(FUSION)
    assert not fused[gamma].any()
    rest = without(fused, gamma)
    np.testing.assert_allclose(rest, plain, rtol=0, atol=1e-6)


def test_gamma_smoothing_affects_weights_from_round_two() -> None:
    gamma = gamma_in(FUSION)
    once, plain = done("fedfusion", 1).model, done("fedfusion", 1, aggregator__smoothing=0).model
    np.testing.assert_allclose(once[gamma], 0.1 * plain[gamma], atol=1e-7)
    assert np.array_equal(without(once, gamma), without(plain, gamma))
    twice, plain = done("fedfusion", 2).model, done("fedfusion", 2, aggregator__smoothing=0).model
    assert not np.array_equal(without(twice, gamma), without(plain, gamma))


def test_fused_model_is_tested_with_its_starting_trunk() -> None:
    how = {"aggregator__smoothing": 0, "training__lr": 0.5}
    fused, same = done("fedfusion", 2, **how), done("fedfusion", 2, **how, objective__evaluate="same")
    assert np.array_equal(fused.model, same.model)
    assert fused.state.history[-1].loss != same.state.history[-1].loss
    assert "before" not in same.state.vectors


KNOBS = [
    ("fedmmd", {"objective__weight": 1.0}),
    ("fedmmd", {"objective__distance": "l2"}),
    ("moon", {"objective__mu": 1.0}),
    ("moon", {"objective__tau": 2.0}),
]


@pytest.mark.parametrize(("strategy", "changes"), KNOBS, ids=str)
def test_every_parameter_changes_the_model(strategy: str, changes: dict[str, Any]) -> None:
    assert not np.array_equal(done(strategy, **changes).model, done(strategy).model)


def test_tour_anchor_is_the_predecessor_model_or_round_model() -> None:
    tour = {"estimator__epochs": 1, "arranger__sets": 1, "arranger__size": 3, "schedule__fraction": 1.0}
    how = {**tour, "objective__name": "mmd", "objective__weight": 1.0}
    received, of_round = done("fedseq", 1, **how), done("fedseq", 1, **how, objective__anchor="round")
    assert not np.array_equal(received.model, of_round.model)
    alone = {**how, "arranger__size": 1}
    assert np.array_equal(done("fedseq", 1, **alone).model, done("fedseq", 1, **alone, objective__anchor="round").model)


# --- devices


def test_device_keeps_its_model_only_from_counted_visits() -> None:
    fleet: list[SmallFleet] = []

    def hot() -> tuple[str, str] | None:
        return ("hot", "81 degrees") if len(fleet[0].job("job").history) == 1 else None

    fleet.append(SmallFleet(SITES, objections={"dev-0": hot}))
    fleet[0].submit(job(**{"strategy": "moon", **PLAIN, **SMALL["moon"], "rounds": 2}))
    assert fleet[0].run("job").status == "done"
    spec, kept = kit_of_jobs(MOON).model, {}
    for device in ("dev-0", "dev-1"):
        memory = machine_of(fleet[0], device, Agent).state.memory["job"]
        assert set(memory.vectors) == {"own"}
        kept[device] = memory.visits, vectors.load(fleet[0].stores[device].blobs, memory.vectors["own"], spec)
    assert kept["dev-0"][0] == 1
    assert kept["dev-1"][0] == 2
    assert np.array_equal(kept["dev-0"][1], own_after_one_round("dev-0"))


def own_after_one_round(device: str) -> np.ndarray:
    fleet = done("moon", 1).fleet
    memory = machine_of(fleet, device, Agent).state.memory["job"]
    return vectors.load(fleet.stores[device].blobs, memory.vectors["own"], kit_of_jobs(MOON).model)


def test_device_without_second_stream_support_is_skipped() -> None:
    def offer(objectives: tuple[str, ...], abilities: tuple[str, ...]) -> Offer:
        return Offer("1", "m", "r", 1, 0, objectives, "npz", (), abilities=abilities)

    before = tuple(word for word in ABILITIES if word != MODEL_TWO_STREAM)
    assert able(offer(NAMES, ABILITIES), "mmd", (MODEL_TWO_STREAM,))
    assert not able(offer(NAMES[:6], before), "mmd", (MODEL_TWO_STREAM,))
    assert not able(offer(NAMES, before), "mmd", (MODEL_TWO_STREAM,))
    assert not leads(before, (MODEL_TWO_STREAM,))


def test_runtime_settings_do_not_require_compiling_again() -> None:
    assert Mmd(weight=3.0).compiled == Mmd(weight=0.5).compiled != Mmd(floor=0.1).compiled
    assert Moon(mu=1.0, tau=0.1).compiled == Moon().compiled != Moon(projection=0).compiled
    assert msgspec.to_builtins(FusionMean())["smoothing"] == 0.9
