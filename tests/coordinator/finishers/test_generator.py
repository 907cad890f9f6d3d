"""Tests of FedGen's server half: its pseudo-code in torch, and its limiting cases."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator.finishers.fedgen import loss_and_gradients, similarity
from coordinator.finishers.finishing import finish, first_state
from coordinator.jobs.settings import read_job
from sojourn.errors import JobError
from sojourn.model.generator import TRAINED, GeneratorLayout, last_layer
from sojourn.parts import Generated, GeneratorServer
from tests.coordinator.finishers.finisher_tasks import drawn, kit_of, member, task_of, text_of

SMALL = Generated(noise=4, hidden=6)
MORE = "objective = { noise = 4, hidden = 6 }\nfinisher = { steps = 3, batch = 5 }"
TEXT = text_of("fedgen", more=MORE)
COUNTS = np.array([[1, 8, 3], [5, 1, 1]], np.float32)


def kit() -> Any:
    return msgspec.structs.replace(kit_of(TEXT), linear=("1.weight", "3.weight"))


def task(counts: Any = COUNTS, **changes: Any) -> Any:
    models = [drawn(kit(), number) for number in range(2)]
    members = [member(at, model, **{"class-counts": counts[at]}) for at, model in enumerate(models)]
    state = first_state(read_job(TEXT, "job").parts(), kit(), 1)
    return task_of(TEXT, models, **{"kit": kit(), "members": members, "state": state, **changes})


class Torch(nn.Module):
    """The generator in the authors' form."""

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__()
        self.first = nn.Linear(7, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(7, 6)
        self.double()
        places = {
            "first": self.first.weight, "first_bias": self.first.bias, "scale": self.norm.weight,
            "shift": self.norm.bias, "last": self.last.weight, "last_bias": self.last.bias,
        }  # fmt: skip
        for name, place in places.items():
            place.data = torch.tensor(np.float64(parts[name]))
        self.places = places

    def forward(self, noise: Any, classes: Any) -> Any:
        given = torch.cat([noise, functional.one_hot(classes, 3)], dim=1)
        return self.last(torch.relu(self.norm(self.first(given))))


def objective(z: Any, noise: Any, classes: Any, heads: Any, weights: Any) -> Any:
    """Return alpha sum_k mean_b[omega CE] + eta exp(-mean_ij(...)) in its plain form."""
    loss = torch.zeros((), dtype=torch.float64)
    for (weight, bias), importance in zip(heads, weights, strict=True):
        each = functional.cross_entropy(z @ torch.tensor(weight).T + torch.tensor(bias), classes, reduction="none")
        loss = loss + (torch.tensor(importance) * each).mean()
    pairs = [
        (noise[i] - noise[j]).square().mean() * (z[i] - z[j]).abs().mean() for i in range(len(z)) for j in range(len(z))
    ]
    return loss + torch.exp(-torch.stack(pairs).mean())


def test_step_matches_pseudo_code() -> None:
    layout = GeneratorLayout.of(SMALL, kit())
    vector = first_state(read_job(TEXT, "job").parts(), kit(), 1)["generator"].astype(np.float64)
    draw = np.random.default_rng(3)
    noise, classes = draw.random((5, 4)), np.array([0, 1, 2, 1, 0])
    heads = [(draw.normal(size=(3, 7)), draw.normal(size=3)) for _ in range(2)]
    weights = draw.random((2, 5))
    it = layout.split(vector)
    loss, slopes = loss_and_gradients(it, layout, heads, weights, noise, classes, GeneratorServer(), keep=True)
    there = Torch(layout.split(first_state(read_job(TEXT, "job").parts(), kit(), 1)["generator"]))
    wanted = objective(
        there(torch.tensor(noise), torch.tensor(classes)), torch.tensor(noise), torch.tensor(classes), heads, weights
    )
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()))
    for name in TRAINED:
        wanted_slope = there.places[name].grad
        assert wanted_slope is not None
        np.testing.assert_allclose(slopes[name], wanted_slope.numpy(), rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(it["mean"], there.norm.get_buffer("running_mean").numpy(), rtol=1e-9)
    np.testing.assert_allclose(it["variance"], there.norm.get_buffer("running_var").numpy(), rtol=1e-9)
    # With running statistics its output equals torch's.
    there.eval()
    made = layout.make(vector, noise, classes)
    np.testing.assert_allclose(made, there(torch.tensor(noise), torch.tensor(classes)).detach().numpy(), rtol=1e-9)


def test_steps_match_torch_adam() -> None:
    settings = GeneratorServer(steps=1, batch=5)
    before = task()
    done = finish(settings, before).state
    layout, last = GeneratorLayout.of(SMALL, kit()), last_layer(kit())
    old, new = layout.split(before.state["generator"]), layout.split(done["generator"])
    # The first step of Adam has length lr in the direction of the gradient, whatever its norm.
    for name in ("first", "last"):
        moved = np.abs(new[name] - old[name])
        assert moved.max() == pytest.approx(settings.lr, rel=1e-2)
    assert done["moments"][-1] == 1
    assert last.inputs == 7
    assert new["there"].tolist() == [1, 1, 1]


def test_class_without_samples_is_not_generated() -> None:
    counts = np.array([[1, 8, 1], [5, 1, 1]], np.float32)
    settings = read_job(TEXT, "job").parts().finisher
    layout = GeneratorLayout.of(SMALL, kit())
    found = finish(settings, task(counts)).state["generator"]
    assert layout.split(found)["there"].tolist() == [1, 1, 0]


def test_empty_counts_keep_generator_and_negative_ones_fail() -> None:
    settings = read_job(TEXT, "job").parts().finisher
    layout, before = GeneratorLayout.of(SMALL, kit()), task(np.ones((2, 3), np.float32))
    after = finish(settings, before).state["generator"]
    for name in TRAINED:
        assert np.array_equal(layout.split(after)[name], layout.split(before.state["generator"])[name])
    with pytest.raises(JobError, match="negative sample count"):
        finish(settings, task(np.array([[1, -4, 1], [1, 2, 3]], np.float32)))


def test_aggregated_model_is_kept_and_result_is_repeatable() -> None:
    settings = read_job(TEXT, "job").parts().finisher
    one, other = finish(settings, task()), finish(settings, task())
    assert one.model is None
    assert np.array_equal(one.state["generator"], other.state["generator"])
    later = finish(settings, task(state=one.state, round=2)).state
    assert later["moments"][-1] == 6
    assert not np.array_equal(later["generator"], one.state["generator"])


def test_identical_inputs_have_highest_similarity() -> None:
    noise = np.random.default_rng(0).random((4, 3))
    assert similarity(noise, np.ones((4, 2)))[0] == 1
    assert similarity(noise, np.random.default_rng(1).normal(size=(4, 2)))[0] < 1
