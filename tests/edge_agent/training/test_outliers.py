"""FedOV on the device: the outliers, and a step compared with its pseudo-code in torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator.compiling import compile_kit
from coordinator.compiling.outliers import _mixing_layer
from edge_agent.training.fedov import OutlierSteps, _apart, _part, blur, crop, cut, erase, outliers, resized, rot
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.parts import Outliers
from sojourn.protocol.spec import InputSpec, Kit
from sojourn.randomness import generator

IMAGE = InputSpec((2, 6, 6))
ZERO = (0.5, -1.0)
NOTHING = np.array(ZERO, np.float32).reshape(-1, 1, 1)
MEAN, STD = [0.5, -1.0], [2.0, 4.0]


def image(seed: int = 0, height: int = 8, width: int = 6) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((2, height, width)).astype(np.float32)


def draws(count: int = 60) -> list[np.random.Generator]:
    return [generator(seed, "a test") for seed in range(count)]


def same_pixels(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(np.sort(a.reshape(2, -1)), np.sort(b.reshape(2, -1)))


def test_rotated_squares_keep_pixels_and_change_the_image() -> None:
    made = [rot(image(), NOTHING, draw) for draw in draws()]
    assert all(same_pixels(each, image()) for each in made)
    assert all(not np.array_equal(each, image()) for each in made)


def test_cuts_swap_halves_or_overlay_one_half() -> None:
    made = [cut(image(), NOTHING, draw) for draw in draws(200)]
    kept = sum(same_pixels(each, image()) for each in made)
    assert 40 < kept < 95  # a third of them
    assert all(not np.array_equal(each, image()) for each in made)
    left = np.concatenate([image()[:, :, 3:], image()[:, :, :3]], axis=2)
    assert any(np.array_equal(each, left) for each in made)
    assert any(np.array_equal(each, np.concatenate([image()[:, 4:], image()[:, :4]], axis=1)) for each in made)


def test_cut_offsets_are_at_least_two_apart() -> None:
    found = {_apart(4, draw) for draw in draws(300)}
    assert found == {(p, q) for p in range(4) for q in range(4) if abs(p - q) >= 2}
    assert _apart(1, draws(1)[0]) == (0, 0)


def test_erased_rectangle_equals_the_model_zero() -> None:
    for draw in draws():
        made = erase(image(1, 12, 12), NOTHING, draw)
        gone = (made == NOTHING).all(0)
        assert 0.2 < gone.mean() < 0.6
        rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
        assert gone.sum() == len(rows) * len(columns)  # a rectangle
        assert np.array_equal(made[:, ~gone], image(1, 12, 12)[:, ~gone])


def test_crop_scales_a_small_part_to_full_size() -> None:
    flat = np.full((2, 8, 8), 3.0, np.float32)
    assert all(np.allclose(crop(flat, NOTHING, draw), 3.0) for draw in draws(5))
    parts = [_part((2, 12, 12), (0.1, 0.33), (0.75, 4 / 3), draw) for draw in draws(200)]
    shares = [height * width / 144 for _, _, height, width in parts]
    assert min(shares) < 0.15
    assert 0.25 < max(shares) < 0.42
    assert crop(image(), NOTHING, draws(1)[0]).shape == (2, 8, 6)


@pytest.mark.parametrize(("height", "width"), [(8, 6), (3, 11), (1, 1)])
def test_resizing_matches_torch(height, width) -> None:
    x = image(3, 4, 5)
    expected = functional.interpolate(torch.from_numpy(x)[None], (height, width), mode="bilinear", align_corners=False)
    np.testing.assert_allclose(resized(x, height, width), expected[0].numpy(), atol=1e-6)


def test_blur_is_close_to_a_window_mean() -> None:
    flat = np.full((2, 8, 8), 3.0, np.float32)
    assert all(np.allclose(blur(flat, NOTHING, draw), 3.0, atol=1e-6) for draw in draws(5))
    for draw in draws(20):
        made = blur(image(2, 16, 16), NOTHING, draw)
        assert made.std() < image(2, 16, 16).std()
        np.testing.assert_allclose(made.mean(), image(2, 16, 16).mean(), atol=0.03)


def test_outliers_change_every_sample_and_are_reproducible() -> None:
    x = np.stack([image(seed, 6, 6) for seed in range(40)])
    made = outliers(x, Outliers().kinds, ZERO, generator(1, "a test"))
    assert made.shape == x.shape
    assert made.dtype == np.float32
    assert (np.abs(made - x).reshape(40, -1).max(1) > 0).all()
    again = outliers(x, Outliers().kinds, ZERO, generator(1, "a test"))
    assert np.array_equal(made, again)
    assert all(same_pixels(a, b) for a, b in zip(outliers(x, ("rot",), ZERO, generator(1, "a test")), x, strict=True))


class Net(nn.Module):
    """Two fully connected layers; three classes and the unknown class."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(72, 5), nn.Linear(5, classes)

    def phi(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x.flatten(1))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.phi(x).relu())  # type: ignore[no-any-return]


WEIGHTS = {"outlier": 0.7, "masked": 0.9, "mix": 0.3, "adversarial": 0.6}
WHOLE = Outliers(**WEIGHTS, reach=0.05, steps=3)  # type: ignore[arg-type]


@cache
def compiled(settings: Outliers = WHOLE) -> tuple[Kit, np.ndarray[Any, Any], Net]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net()
    classes = ("a", "b", "c")
    made = compile_kit(net, IMAGE, classes, mean=MEAN, std=STD, seed=0, whole=True, outliers=settings)
    return made.kit, made.initial, net


def batch(size: int = 6) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(4)
    return random.normal(0, 2, (size, 2, 6, 6)).astype(np.float32), np.arange(size) % 3


def seen(x: Any) -> torch.Tensor:
    """Preprocess as the network does."""
    return (torch.from_numpy(np.asarray(x)) - torch.tensor(MEAN).reshape(-1, 1, 1)) / torch.tensor(STD).reshape(
        -1, 1, 1
    )


def pseudo_code(net: Net, settings: Outliers, seed: int, step: int) -> tuple[float, np.ndarray[Any, Any]]:
    """One step of FedOV as in the paper's code, on preprocessed images."""
    (x, y), draw, unknown = batch(), generator(seed, "outliers", step), torch.full((6,), 3)
    o = seen(outliers(x, settings.kinds, ZERO, draw))
    order, share = draw.permutation(6), draw.random()
    adv = o.clone()
    for _ in range(settings.steps):
        adv = adv.detach().requires_grad_()
        functional.cross_entropy(net(adv), unknown).backward()
        adv = (adv + settings.reach * adv.grad.sign()).detach()  # type: ignore[union-attr]
    net.zero_grad()
    inputs, labels = seen(x), torch.from_numpy(y)
    logits = net(inputs)
    loss = functional.cross_entropy(logits, labels)
    whole = loss + settings.outlier * functional.cross_entropy(net(o), unknown)
    whole = whole + settings.masked * functional.cross_entropy(logits - 1e4 * functional.one_hot(labels, 4), unknown)
    unlike = labels != labels[order]
    mixed = net.last((share * net.phi(inputs) + (1 - share) * net.phi(inputs[order])).relu())
    whole = whole + settings.mix * functional.cross_entropy(mixed[unlike], unknown[unlike])
    whole = whole + settings.adversarial * functional.cross_entropy(net(adv), unknown)
    gradients = torch.autograd.grad(whole, list(net.parameters()))
    return float(loss.detach()), torch.cat([each.reshape(-1) for each in gradients]).numpy()


def test_step_matches_pseudo_code_and_every_term_counts() -> None:
    kit, initial, net = compiled()
    assert kit.outliers
    assert set(kit.outliers.terms) == set(WEIGHTS)
    steps = OutlierSteps(kit, kit.outliers, WHOLE, 9, Graphs(kit))
    for number in range(2):
        loss, gradient = steps.loss_and_gradient(initial, *batch())
        expected_loss, expected = pseudo_code(net, WHOLE, 9, number)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
        for term in WEIGHTS:
            _, less = pseudo_code(net, msgspec.structs.replace(WHOLE, **{term: 0.0}), 9, number)
            assert np.abs(gradient - less).max() > 1e-3 * np.abs(expected).max()


def test_dropping_a_term_leaves_other_terms_unchanged() -> None:
    settings = msgspec.structs.replace(WHOLE, outlier=0.0, mix=0.0)
    kit, initial, net = compiled(settings)
    assert kit.outliers
    assert kit.outliers.terms == ("masked", "adversarial")
    _, gradient = OutlierSteps(kit, kit.outliers, settings, 9, Graphs(kit)).loss_and_gradient(initial, *batch())
    _, expected = pseudo_code(net, settings, 9, 0)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("knob", [{"steps": 1}, {"reach": 0.5}, {"kinds": ("blur",)}], ids=str)
def test_every_other_parameter_changes_a_step(knob) -> None:
    kit, initial, _ = compiled()
    assert kit.outliers
    plain, turned = (
        OutlierSteps(kit, kit.outliers, settings, 9, Graphs(kit)).loss_and_gradient(initial, *batch())[1]
        for settings in (WHOLE, msgspec.structs.replace(WHOLE, **knob))
    )
    assert not np.array_equal(plain, turned)


def test_unknown_class_is_in_votes_but_not_in_predictions() -> None:
    kit, initial, net = compiled()
    x, _ = batch()
    graphs = Graphs(kit)
    expected = net(seen(x)).detach().numpy()
    np.testing.assert_allclose(graphs.votes(initial, x), expected, atol=1e-5)
    np.testing.assert_allclose(graphs.outputs(initial, x), expected[:, :3], atol=1e-5)
    assert graphs.has_unknown
    raw = torch.from_numpy(x).requires_grad_()
    at = (raw - torch.tensor(MEAN).reshape(-1, 1, 1)) / torch.tensor(STD).reshape(-1, 1, 1)
    functional.cross_entropy(net(at), torch.full((6,), 3), reduction="sum").backward()
    assert raw.grad is not None
    np.testing.assert_allclose(graphs.slope(initial, x), raw.grad.numpy(), atol=1e-5)


def test_batchnorm_sees_samples_and_outliers_as_one_batch() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    spec = InputSpec((1, 6, 6))
    made = compile_kit(net, spec, ("a", "b", "c"), mean=None, std=None, seed=0, whole=True, outliers=Outliers())
    kit = made.kit
    assert kit.outliers
    assert kit.outliers.terms == ()
    x, y = batch()[0][:, :1], batch()[1]
    steps = OutlierSteps(kit, kit.outliers, Outliers(), 9, Graphs(kit))
    loss, gradient, state = steps.loss_gradient_and_state(made.initial, x, y)
    o = outliers(x, Outliers().kinds, (0.0,), generator(9, "outliers", 0))
    logits = net.train()(torch.from_numpy(np.concatenate([x, o])))
    labels = torch.from_numpy(y)
    whole = functional.cross_entropy(logits[:6], labels) + functional.cross_entropy(logits[6:], torch.full((6,), 3))
    expected = torch.cat([each.reshape(-1) for each in torch.autograd.grad(whole, list(net.parameters()))]).numpy()
    assert loss == pytest.approx(float(whole.detach()), abs=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    mean = net[2].running_mean
    assert isinstance(mean, torch.Tensor)
    np.testing.assert_allclose(state[:6], mean.numpy(), atol=1e-5)


def test_non_image_input_or_unknown_layer_is_refused_by_name() -> None:
    flat = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(ModelError, match=r"outliers are made of images .* shape \[4\]"):
        compile_kit(flat, InputSpec((4,)), ("a", "b", "c"), mean=None, std=None, seed=0, outliers=Outliers())
    x = torch.rand(2, *IMAGE.shape)
    with pytest.raises(ModelError, match=r"objective\.layer: the model has no layer 'nowhere'"):
        _mixing_layer(Net(), "nowhere", x)
    assert _mixing_layer(Net(), "", x) == ("hidden", False)
    assert _mixing_layer(nn.Sequential(nn.Flatten(), nn.Linear(72, 4)), "", x) == ("1", True)
