"""Tests of tasks as graphs: losses, target scaling, scores of samples, and custom losses that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.compiling import compile_kit
from coordinator.compiling.custom_losses import CustomLoss, load_loss
from coordinator.compiling.kits import Compiled
from coordinator.compiling.losses import LossContext, learning_of
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window

ONE = Strata(1)
ROW = InputSpec((4,))
MEAN, STD = (20.0, 1000.0), (4.0, 250.0)
QUANTITIES = TaskSpec("regression", (2,), Target((2,)), ONE, loss="mse")
CASES: dict[str, tuple[TaskSpec, InputSpec, int, tuple[int, ...]]] = {
    "mse": (QUANTITIES, ROW, 4, (2,)),
    "l1": (msgspec.structs.replace(QUANTITIES, loss="l1"), ROW, 4, (2,)),
    "huber": (msgspec.structs.replace(QUANTITIES, loss="huber"), ROW, 4, (2,)),
    "labels": (TaskSpec("multilabel", (3,), Target((3,)), Strata(3), loss="binary-cross-entropy"), ROW, 4, (3,)),
    "shapes": (TaskSpec("reconstruction", (3, 2), None, ONE, loss="mse"), InputSpec((3, 2)), 6, (3, 2)),
    "series": (
        TaskSpec("forecast", (2, 2), Target((2, 2)), ONE, loss="mse", window=Window(3, 2)),
        InputSpec((3, 2)),
        6,
        (2, 2),
    ),
}


def net(inward: int, output: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(3)
    shaped = [nn.Unflatten(1, output)] if len(output) > 1 else []
    return nn.Sequential(nn.Flatten(), nn.Linear(inward, 5), nn.Tanh(), nn.Linear(5, int(np.prod(output))), *shaped)


def compiled(name: str) -> tuple[Compiled, nn.Module]:
    task, spec, inward, output = CASES[name]
    scaled = task.kind in ("regression", "reconstruction", "forecast")
    learning = learning_of(task, MEAN if scaled else None, STD if scaled else None)
    module = net(inward, output)
    classes = ("a", "b", "c") if task.kind == "multilabel" else ()
    mean, std = (MEAN, STD) if task.kind == "reconstruction" else (None, None)
    return compile_kit(module, spec, classes, mean=mean, std=std, seed=1, learning=learning), module


def by_hand(task: TaskSpec, raw: Tensor, y: Tensor) -> Tensor:
    scaled = task.kind != "multilabel"
    target = (y - torch.tensor(MEAN)) / torch.tensor(STD) if scaled else y
    match task.loss:
        case "mse":
            each = (raw - target).square()
        case "l1":
            each = (raw - target).abs()
        case "huber":
            each = functional.huber_loss(raw, target, reduction="none")
        case _:
            each = functional.binary_cross_entropy_with_logits(raw, target, reduction="none")
    return each.flatten(1).mean(1)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_predictions_match_formulas(name: str) -> None:
    made, module = compiled(name)
    task, spec, _, _ = CASES[name]
    draw = np.random.default_rng(5)
    x = draw.standard_normal((7, *spec.shape)).astype(np.float32)
    inputs = torch.from_numpy(x)
    if task.kind == "reconstruction":
        x = (x * STD + MEAN).astype(np.float32)
        y, inputs = x, (torch.from_numpy(x) - torch.tensor(MEAN)) / torch.tensor(STD)
    elif task.kind == "multilabel":
        y = draw.integers(0, 2, (7, 3)).astype(np.float32)
    else:
        y = (draw.standard_normal((7, *task.output)) * STD + MEAN).astype(np.float32)
    graphs, w = Graphs(made.kit), made.initial
    raw = module.eval()(inputs).detach()
    wanted = by_hand(task, raw, torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(graphs.losses(w, x, y), wanted, rtol=2e-5)
    assert graphs.loss(w, x, y) == pytest.approx(wanted.mean(), rel=2e-5)
    assert graphs.loss_and_gradient(w, x, y)[0] == pytest.approx(wanted.mean(), rel=2e-5)
    answers = raw.numpy() * STD + MEAN if task.kind != "multilabel" else raw.numpy()
    np.testing.assert_allclose(graphs.outputs(w, x), answers, rtol=2e-5, atol=1e-4)
    assert check_probe(made.kit, graphs) is None


def test_probe_with_other_targets_disagrees() -> None:
    kit = compiled("mse")[0].kit
    other = np.frombuffer(kit.probe.targets, np.float32) + 100
    wrong = msgspec.structs.replace(kit, probe=msgspec.structs.replace(kit.probe, targets=other.tobytes()))
    assert "the probe's loss is" in str(check_probe(wrong, Graphs(wrong)))


OUTSIDE, ALIGNED = torch.randn(6, 2), torch.randn(100, 2)
CALLS = [0]


def scalar(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


def weighed(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square() * torch.tensor([1.0, 3.0])


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    error = targets - outputs
    return torch.maximum(0.9 * error, -0.1 * error).mean(1)


def near(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    start = context.reference_models["start"]
    apart = (context.features["1"] - start.features["1"]).square().mean(1)
    return (outputs - targets).square().mean(1) + 0.5 * apart + 0.1 * (outputs - start.outputs).square().mean(1)


def remembers(outputs: Tensor, targets: Tensor) -> Tensor:
    CALLS[0] += 1
    return (outputs - targets).square() * CALLS[0]


REFUSED: dict[str, tuple[Any, str]] = {
    "nan": (lambda o, _t: torch.log(o - 1e9), "is nan on generated samples"),
    "detached": (lambda o, t: (o.detach() - t).square(), "cannot be differentiated"),
    "rounded": (lambda o, t: (o.round() - t).square(), "gradient of 0"),
    "captured": (lambda o, _t: (o - OUTSIDE).square(), "must not use another tensor"),
    "aligned": (lambda o, _t: (o - ALIGNED[: len(o)]).square(), "data other than its arguments"),
    "of a batch": (lambda o, t: (o - o.mean(0)).square() + (o - t).square(), "depends on the other samples"),
    "a whole batch": (
        lambda o, t: (o - t).square().mean() + o.var(0, correction=0).sum(),
        "depends on the batch as a whole",
    ),
    "random": (lambda o, t: (o - t + torch.randn_like(o)).square(), "random numbers"),
    "remembers": (remembers, "another result for the same input"),
    "nothing": (lambda _o, _t: None, "returns a NoneType"),
    "whole numbers": (lambda o, _t: o.argmax(1), "a tensor of torch.int64"),
    "fails": (lambda o, _t: o @ o, "fails on generated samples"),
    "wrong shape": (lambda o, t: (o - t).square().reshape(-1), "for 6 samples"),
}


def custom(function: Any, **changes: Any) -> Compiled:
    task = msgspec.structs.replace(QUANTITIES, loss="nets:own", reference_models=changes.pop("reference_models", ()))
    learning = learning_of(task, MEAN, STD, loss=CustomLoss(function, "nets:own"), loss_name="nets:own", **changes)
    return compile_kit(net(4, (2,)), ROW, (), mean=None, std=None, seed=1, learning=learning)


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_loss_is_rejected_by_name(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(ModelError, match=f"the loss nets:own .*{reason}"):
        custom(function)


def test_batch_mean_equals_mean_of_sample_losses() -> None:
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    y = np.tile(np.array(MEAN, np.float32), (5, 1))
    kits = [custom(scalar).kit, compiled("mse")[0].kit]
    w = compiled("mse")[0].initial
    ours, theirs = (Graphs(kit).losses(w, x, y) for kit in kits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    mine, other = (Graphs(kit).loss_and_gradient(w, x, y)[1] for kit in kits)
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [weighed, pinball])
def test_custom_losses_compile(function: Any) -> None:
    made = custom(function)
    x, y = np.zeros((3, 4), np.float32), np.tile(np.array([24.0, 1250.0], np.float32), (3, 1))
    outputs = torch.from_numpy((Graphs(made.kit).outputs(made.initial, x) - MEAN) / STD)
    wanted = function(outputs, torch.ones(3, 2)).reshape(3, -1).mean(1).numpy()
    np.testing.assert_allclose(Graphs(made.kit).losses(made.initial, x, y), wanted, rtol=1e-4)


def test_loss_can_use_layers_and_start_model() -> None:
    made = custom(near, reference_models=("start",), features=("1",))
    x, y = np.ones((3, 4), np.float32), np.tile(np.array(MEAN, np.float32), (3, 1))
    graphs, w = Graphs(made.kit), made.initial
    alone = graphs.losses(w, x, y)  # the start model is by default the model itself
    np.testing.assert_allclose(alone, graphs.losses(w, x, y, [w]))
    assert (graphs.losses(w, x, y, [w * 0.5]) > alone).all()
    here, there = (graphs.loss_and_gradient(w, x, y, reference_models=[start])[1] for start in (w, w * 0.5))
    assert not np.allclose(here, there)


def test_unknown_layer_is_named() -> None:
    with pytest.raises(ModelError, match="no layer 'encoder' for the loss nets:own; its layers are 0, 1, 2, 3"):
        custom(near, reference_models=("start",), features=("encoder",))


def test_unknown_loss_function_is_named() -> None:
    with pytest.raises(ModelError, match="has no function 'mean'"):
        load_loss("tests.coordinator.compiling.test_learning:mean", None)
    with pytest.raises(ModelError, match="cannot be imported"):
        load_loss("no_such_module:loss", None)


def test_wrong_output_shape_reports_expected_shape() -> None:
    with pytest.raises(ModelError, match=r"must be \(2, 2\): a number for each quantity"):
        compile_kit(net(4, (3,)), ROW, (), mean=None, std=None, seed=1, learning=learning_of(QUANTITIES))


@pytest.mark.parametrize(
    ("layers", "output", "advice"),
    [
        ([nn.Linear(4, 256), nn.Unflatten(1, (16, 16))], (256,), "Put nn.Flatten(1) after its last layer"),
        ([nn.Linear(4, 6)], (3, 2), "Put nn.Unflatten(1, (3, 2)) after its last layer"),
        ([nn.Linear(4, 6), nn.Unflatten(1, (2, 3))], (3, 2), "Put nn.Flatten(1) and nn.Unflatten(1, (3, 2)) after"),
        ([nn.Linear(4, 5)], (3, 2), "Use a last layer with 6 outputs, and put nn.Unflatten(1, (3, 2)) after it"),
        ([nn.Linear(4, 5)], (2,), "Use a last layer with 2 outputs"),
    ],
)
def test_wrong_output_shape_gives_fitting_advice(layers: list[nn.Module], output: Any, advice: str) -> None:
    task = msgspec.structs.replace(QUANTITIES, output=output, target=Target(output))
    with pytest.raises(ModelError) as refused:
        compile_kit(
            nn.Sequential(*layers), ROW, (), mean=None, std=None, seed=1, learning=learning_of(task, None, None)
        )
    assert advice in str(refused.value)
