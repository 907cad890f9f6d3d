"""Tests of DENSE against its pseudo-code in torch, and of its limiting cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from coordinator.finishers import dense as module
from coordinator.finishers.dense import (
    Generator,
    UnusualStatistics,
    _Distilling,
    dense,
    draw_weights,
    generate,
    learn,
    shifted,
)
from coordinator.finishers.finishing import check_kit, finish
from coordinator.finishers.torch_models import TorchModels
from coordinator.jobs.settings import read_job
from sojourn.errors import ConfigError, JobError
from sojourn.parts import Dense
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.randomness import derive
from tests.coordinator.finishers.finisher_tasks import IMAGES, drawn, kit_of, task_of, text_of
from tests.sojourn.protocol.examples import kit_without_graphs

CPU = torch.device("cpu")
SMALL = {"epochs": 2, "steps": 3, "images": 8, "noise": 4, "padding": 1, "flip": False, "lr": 0.05, "tau": 2.0}


def small(**changes: Any) -> Dense:
    return Dense(**{**SMALL, **changes})


def norm_text() -> str:
    return text_of(model="tests.fleet_sim.batchnorm_net:SmallResidual", options="options = { classes = 3 }")


def made(settings: Dense, models: Any = 3, text: str = "") -> np.ndarray[Any, Any]:
    found = finish(settings, task_of(text or text_of(), models)).model
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain() -> np.ndarray[Any, Any]:
    return made(small())


def test_same_seed_gives_same_bits_and_other_seed_differs(plain) -> None:
    before = torch.get_rng_state()
    assert np.array_equal(made(small()), plain)
    assert torch.equal(torch.get_rng_state(), before)
    other = dense(small(), task_of(text_of(), seed=6)).model
    assert other is not None
    assert not np.array_equal(other, plain)


@pytest.mark.parametrize(
    "knob",
    [
        {"epochs": 1}, {"steps": 1}, {"images": 7}, {"noise": 5}, {"generator_lr": 0.1}, {"oh": 0.0}, {"adv": 0.0},
        {"tau": 3.0}, {"lr": 0.01}, {"momentum": 0.0}, {"padding": 0}, {"flip": True},
    ],
    ids=str,
)  # fmt: skip
def test_every_parameter_changes_the_student(plain, knob) -> None:
    assert not np.array_equal(made(small(**knob)), plain)


def test_zero_epochs_give_a_fresh_student() -> None:
    text = text_of()
    found = made(small(epochs=0), text=text)
    task = task_of(text)
    fresh = TorchModels(task, CPU).fresh(derive(task.seed, "student"))
    assert np.array_equal(found, TorchModels(task, CPU).vector(fresh))
    assert not np.array_equal(found, task.mean)


def test_zero_steps_are_rejected() -> None:
    with pytest.raises(ConfigError, match="steps"):
        read_job(text_of(more="finisher = { steps = 0 }"), "job")


def distilling(settings: Dense, text: str, students: int = 1, models: int = 2) -> _Distilling:
    task = task_of(text, models)
    made = TorchModels(task, CPU)
    members = [made.filled(each.load()) for each in task.members]
    drawers = [torch.Generator().manual_seed(number) for number in (3, 4)]
    making, learning = drawers
    return _Distilling(settings, CPU, making, learning, members, made.fresh(students), IMAGES.shape, 3, 0.0, 16.0)


def test_images_ignore_the_student_if_adv_is_zero() -> None:
    def images(adv: float, student: int) -> torch.Tensor:
        return generate(distilling(small(adv=adv), text_of(), student))

    assert torch.equal(images(0.0, 1), images(0.0, 2))
    assert not torch.equal(images(1.0, 1), images(1.0, 2))


def test_ensemble_output_is_mean_of_members() -> None:
    kit = kit_of(text_of())
    one, two = (TorchModels(task_of(text_of()), CPU).filled(drawn(kit, number)) for number in (0, 1))
    it, x = distilling(small(), text_of()), torch.rand(4, *IMAGES.shape)
    assert torch.equal(it._replace(members=[one]).ensemble(x), one(x))
    assert torch.allclose(it._replace(members=[one] * 3).ensemble(x), one(x), atol=1e-6)
    assert torch.allclose(it._replace(members=[one, two]).ensemble(x), (one(x) + two(x)) / 2)


def test_image_pool_grows_with_each_epoch(monkeypatch) -> None:
    sizes = []
    plain_learn = module.learn

    def counted(it: Any, pool: Any, by: Any) -> None:
        sizes.append(sum(map(len, pool)))
        plain_learn(it, pool, by)

    monkeypatch.setattr(module, "learn", counted)
    made(small(epochs=3))
    assert sizes == [8, 16, 24]


def test_images_match_pseudo_code() -> None:
    """With BatchNorm layers, so that all three terms count: G and z take Adam steps, and the best images are kept."""
    settings = small(padding=0, steps=4)
    it, again = distilling(settings, norm_text()), distilling(settings, norm_text())
    found = generate(it)
    by, student = again.making, again.student.eval()
    g = Generator(settings.noise, IMAGES.shape)
    draw_weights(g, by)
    z = torch.randn(8, 4, generator=by).requires_grad_()
    y = torch.randint(0, 3, (8,), generator=by)
    adam = torch.optim.Adam([*g.parameters(), z], 1e-3, (0.5, 0.999))
    seen: list[torch.Tensor] = []

    def look(layer: Any, given: Any, _out: Any) -> None:
        x = given[0].transpose(0, 1).flatten(1)
        mean, var = x.mean(1), x.var(1, unbiased=False)
        seen.append((mean - layer.running_mean).norm() + (var - layer.running_var).norm())

    for each in again.members:
        for layer in each.modules():
            if isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
                layer.register_forward_hook(look)
    best, lowest = None, np.inf
    for _ in range(4):
        seen.clear()
        x = g(z)
        t = (again.members[0](16 * x) + again.members[1](16 * x)) / 2
        s = student(16 * x)
        kl = (t.softmax(1) * (t.log_softmax(1) - s.log_softmax(1))).sum(1)
        wrong = (s.argmax(1) != t.argmax(1)).float()
        loss = functional.cross_entropy(t, y) + torch.stack(seen).sum() - (wrong * kl).mean()
        if loss.item() < lowest:
            best, lowest = x.detach().clone(), loss.item()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert seen
    assert best is not None
    torch.testing.assert_close(found, best, rtol=1e-5, atol=1e-5)


def test_student_training_matches_pseudo_code() -> None:
    settings = small(padding=0, images=3, momentum=0.5)
    it, again = distilling(settings, text_of()), distilling(settings, text_of())
    pool = torch.rand(7, *IMAGES.shape)
    learn(it, [pool[:4], pool[4:]], torch.optim.SGD(it.student.parameters(), 0.05, 0.5))
    w = list(again.student.parameters())
    velocity = [torch.zeros_like(each) for each in w]
    for rows in torch.randperm(7, generator=again.learning).split(3):
        x = 16 * pool[rows]
        t = sum(each(x) for each in again.members) / 2
        s = again.student(x)
        p = (t / 2).softmax(1)
        loss = 4 * (p * (p.log() - (s / 2).log_softmax(1))).sum(1).mean()
        for at, gradient in enumerate(torch.autograd.grad(loss, w)):
            velocity[at] = 0.5 * velocity[at] + gradient
            w[at].data -= 0.05 * velocity[at]
    for ours, theirs in zip(it.student.parameters(), w, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_batchnorm_matters_and_returns_its_statistics(plain) -> None:
    text = norm_text()
    with_norms = made(small(), text=text)
    assert not np.array_equal(with_norms, made(small(bn=0.0), text=text))
    assert np.array_equal(made(small(bn=0.0)), plain)  # no such layer, so no such term
    kit = kit_of(text)
    fresh = made(small(epochs=0), text=text)
    assert (with_norms[kit.model.trainable_size :] != fresh[kit.model.trainable_size :]).any()


def test_shifted_images_are_crops_of_padded_ones() -> None:
    images, by = torch.rand(5, 2, 6, 4), torch.Generator().manual_seed(1)
    assert torch.equal(shifted(images, 0, False, by), images)
    framed = functional.pad(images, [2] * 4)
    for image, frame in zip(shifted(images, 2, False, by), framed, strict=True):
        pieces = (frame[:, r : r + 6, c : c + 4] for r in range(5) for c in range(5))
        assert any(torch.equal(image, piece) for piece in pieces)
    turned = [torch.equal(a, b.flip(-1)) for a, b in zip(shifted(images, 0, True, by), images, strict=True)]
    assert set(turned) == {True, False}


def test_unusual_statistics_are_consumed_once() -> None:
    layer = torch.nn.BatchNorm2d(1).eval()
    watch = UnusualStatistics([layer])
    layer(torch.full((2, 1, 2, 2), 3.0))
    assert float(watch.take()) == pytest.approx(3.0 + 1.0)  # mean 3 instead of 0, variance 0 instead of 1
    assert watch.take() == 0.0
    watch.close()
    layer(torch.rand(2, 1, 2, 2))
    assert watch.take() == 0.0


def test_best_student_is_chosen_on_exemplars(monkeypatch) -> None:
    answers = iter([0.1, 0.9, 0.4])
    monkeypatch.setattr(module, "_accuracy", lambda *_: next(answers))
    best = made(small(epochs=3, keep="best"))
    monkeypatch.undo()
    assert np.array_equal(best, made(small(epochs=2)))
    with pytest.raises(JobError, match="needs exemplars"):
        finish(small(keep="best"), task_of(text_of(), exemplars=None))


def test_non_image_input_is_rejected_before_training() -> None:
    rows = kit_without_graphs(ModelSpec((TensorSpec("w", (3,)),)), InputSpec((9,)))
    with pytest.raises(JobError, match=r"generates images .* input is float32 of shape \[9\]"):
        check_kit(Dense(), rows)
    check_kit(Dense(), kit_of(text_of()))


def test_memory_limit_rejects_large_images_and_models() -> None:
    with pytest.raises(JobError, match="3 models of"):
        made(small(memory=1e-4))
    with pytest.raises(JobError, match="MB for images"):
        made(small(epochs=1_000_000, memory=100))
