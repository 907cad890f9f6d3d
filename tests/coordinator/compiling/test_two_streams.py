"""Tests of kits with a second stream: with trunks, dropout and BatchNorm, for other tasks; and of refusals."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.compiling.extra_layers import enlarged, tap_of
from coordinator.compiling.frozen_parts import with_shared_weights
from coordinator.compiling.losses import learning_of
from coordinator.compiling.two_streams import MeanDiscrepancy, contrast, discrepancy
from coordinator.console.signing import differences
from coordinator.jobs.model import job_model, random_model
from coordinator.jobs.settings import read_job
from coordinator.models import build
from fleet_sim.engines.engine import Network
from fleet_sim.engines.torch_graphs import TorchGraphs
from sojourn.errors import GraphRefused, ModelError
from sojourn.model.graphs import Graphs, Streams, check_probe
from sojourn.parts import FeatureMatch, Fusion, Mmd, Moon
from sojourn.protocol.spec import InputSpec, Kit, TwoStreamGraph
from sojourn.protocol.task import Strata, Target, TaskSpec
from tests.there import there

if TYPE_CHECKING:
    from torch import Tensor

IMAGE, CLASSES = InputSpec((1, 6, 6)), ("a", "b", "c")
WIDTHS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6]


def seeded(make: Any) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        made: nn.Sequential = make()
        return made


def noisy() -> nn.Sequential:
    """A model with BatchNorm and dropout, whose pass in training differs from prediction."""
    head = nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3))
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), *head)


def frozen() -> nn.Sequential:
    trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten()).requires_grad_(requires_grad=False)
    return nn.Sequential(trunk, nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3))


@cache
def kit_of(make: Any, objective: Any) -> Compiled:
    module = enlarged(seeded(make), objective, IMAGE, 1)
    return compile_kit(module, IMAGE, CLASSES, mean=None, std=None, seed=1, objective=objective.compiled)


def stream_of(kit: Kit) -> TwoStreamGraph:
    assert kit.two_stream
    return kit.two_stream


def batch(kit: Any, size: int = 7) -> tuple[Any, Any, list[Any]]:
    draw = np.random.default_rng(2)
    x = draw.standard_normal((size, *kit.input.shape), dtype=np.float32)
    noise = [draw.random((size, *shape), dtype=np.float32) for shape in kit.noise]
    return x, draw.integers(0, 3, size), noise


# --- the terms


def mmd(a: Tensor, b: Tensor, widths: list[float], factor: float) -> Tensor:
    def kernel(one: Tensor, other: Tensor) -> Tensor:
        squares = (one[:, None] - other[None]).square().sum(2)
        return torch.stack([torch.exp(-squares / (factor * s)) for s in widths]).sum(0).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


@pytest.mark.parametrize("relative", [False, True])
def test_discrepancy_and_gradient_match_formula(relative: bool) -> None:
    draw = np.random.default_rng(1)
    a, b = (torch.from_numpy(draw.standard_normal((6, 4))) for _ in range(2))
    rows = torch.cat([a, b])
    middle = float((rows[:, None] - rows[None]).square().sum() / (12 * 11))
    widths, factor = ([middle * 2.0 ** (i - 2) for i in range(5)], 1.0) if relative else (WIDTHS, 2.0)
    leaf, other = a.clone().requires_grad_(), a.clone().requires_grad_()
    expected = mmd(leaf, b, widths, factor)
    expected.backward()
    found = MeanDiscrepancy.apply(other.float(), b.float(), relative)
    found.backward()
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
    own, wanted = there(other.grad), there(leaf.grad)
    np.testing.assert_allclose(own, wanted, atol=1e-5 * float(wanted.abs().max()))


def test_equal_rows_have_no_discrepancy_in_any_order() -> None:
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    turned = rows[torch.randperm(9, generator=torch.Generator().manual_seed(2))]
    assert abs(float(MeanDiscrepancy.apply(rows, turned, False))) < 1e-5
    assert abs(float(MeanDiscrepancy.apply(rows, rows, True))) < 1e-5
    near = rows + 1e-3
    assert float(MeanDiscrepancy.apply(near, rows, False)) > 1e-4  # small widths detect it; inner products do not


def test_discrepancy_below_floor_has_no_gradient() -> None:
    rows, there = torch.eye(4, 3, requires_grad=True), torch.zeros(4, 3)
    for floor, slope in ((1e-4, True), (1e3, False)):
        (found,) = torch.autograd.grad(
            discrepancy(rows, [there], [torch.tensor(2.0)], floor=floor, relative=False), rows
        )
        assert bool(found.abs().max() > 0) == slope


def test_contrast_of_equals_is_log_2_and_drops_near_anchor() -> None:
    p, q = torch.eye(4)[:2], torch.eye(4)[2:]
    numbers = [torch.tensor(3.0), torch.tensor(0.5)]
    assert float(contrast(p, [q, q], numbers)) == pytest.approx(3 * np.log(2))
    assert float(contrast(p, [p, q], numbers)) == pytest.approx(3 * np.log1p(np.exp(-2)))


# --- graphs


def test_models_are_compared_in_prediction_mode() -> None:
    made = kit_of(noisy, Mmd(layer="penultimate"))
    graphs, (x, y, noise) = Graphs(made.kit), batch(made.kit)
    _, plain, state = graphs.loss_gradient_and_state(made.initial, x, y, noise)
    same = Streams([made.initial], [9.0])
    plain_loss, both, left = graphs.loss_gradient_and_state(made.initial, x, y, noise, streams=same)
    np.testing.assert_allclose(both, plain, atol=1e-6)  # the first step of a visit has only the plain gradient
    np.testing.assert_array_equal(left, state)
    other = made.initial * np.float32(0.7)
    again, apart, _ = graphs.loss_gradient_and_state(made.initial, x, y, noise, streams=Streams([other], [9.0]))
    assert np.abs(apart - plain).max() > 1e-3
    assert again == plain_loss  # the reported loss is the plain one
    nothing = graphs.loss_gradient_and_state(made.initial, x, y, noise, streams=Streams([other], [0.0]))[1]
    np.testing.assert_allclose(nothing, plain, atol=1e-6)


def test_frozen_trunk_runs_once_for_both_streams() -> None:
    made = kit_of(frozen, FeatureMatch())
    assert made.kit.trunk
    graphs, (x, y, _) = Graphs(made.kit), batch(made.kit)
    shared = with_shared_weights(made.kit, seeded(frozen))
    assert check_probe(shared, Graphs(shared)) is None
    streams = Streams([made.initial * np.float32(0.5)], [2.0])
    apart = graphs.loss_and_gradient(made.initial, graphs.features(x), y, streams=streams)
    assert np.abs(apart[1] - graphs.loss_and_gradient(made.initial, graphs.features(x), y)[1]).max() > 1e-3


def test_torch_engine_uses_the_device_graph() -> None:
    made = kit_of(frozen, FeatureMatch())
    module, streams = seeded(frozen), Streams([made.initial * np.float32(0.5)], [2.0])
    by_torch, (x, y, _) = TorchGraphs(made.kit, Network(module, None, None, "merge")), batch(made.kit)
    own = Graphs(made.kit)
    expected = own.loss_and_gradient(made.initial, own.features(x), y, streams=streams)
    assert np.array_equal(by_torch.loss_and_gradient(made.initial, x, y, streams=streams)[1], expected[1])
    assert check_probe(made.kit, by_torch) is None


def test_other_tasks_support_second_streams() -> None:
    task = TaskSpec("regression", (2,), Target((2,)), Strata(2), loss="mse")
    module = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    learning = learning_of(task, (1.0, 2.0), (3.0, 0.5))
    spec = InputSpec((4,))
    made = compile_kit(module, spec, (), mean=None, std=None, seed=1, learning=learning, objective=Mmd().compiled)
    x, y = np.ones((5, 4), np.float32), np.ones((5, 2), np.float32)
    graphs = Graphs(made.kit)
    plain = graphs.loss_and_gradient(made.initial, x, y)
    apart = graphs.loss_and_gradient(made.initial, x, y, streams=Streams([made.initial * np.float32(0.5)], [1.0]))
    assert plain[0] == apart[0]
    assert np.abs(plain[1] - apart[1]).max() > 1e-3


# --- places in a model


def test_layers_are_found_or_rejected_by_name() -> None:
    module, x = build("cnn", IMAGE, 3, {"channels": [2], "hidden": 4}, 1), torch.zeros(2, 1, 6, 6)
    assert tap_of("penultimate", module, x, "here") == tap_of("penultimate", module, x, "here")
    assert tap_of("penultimate", module, x, "here").layer == "6"
    assert tap_of("2", module, x, "here").layer == "2"
    with pytest.raises(ModelError, match=r"here: the model has no layer 'encoder'; set 'logits', 'penultimate', or"):
        tap_of("encoder", module, x, "here")
    with pytest.raises(ModelError, match="do not come directly from a linear layer"):
        tap_of("penultimate", nn.Sequential(module, nn.Softmax(1)), x, "here")


def test_enlarging_a_model_keeps_its_other_weights() -> None:
    plain = build("cnn", IMAGE, 3, {"channels": [2], "hidden": 4}, 1)
    larger = enlarged(build("cnn", IMAGE, 3, {"channels": [2], "hidden": 4}, 1), Moon(projection=7), IMAGE, 1)
    own, there = plain.state_dict(), larger.state_dict()
    assert [name for name in there if name not in own] == [
        f"6.{part}.{kind}" for part in ("first", "second", "last") for kind in ("weight", "bias")
    ]
    assert all(torch.equal(own[name], there[name]) for name in own if name in there)
    assert there["6.second.weight"].shape == (7, 4)
    fused = enlarged(build("cnn", IMAGE, 3, {"channels": [2], "hidden": 4}, 1), Fusion(operator="conv"), IMAGE, 1)
    x = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fused.eval()(x), plain.eval()(x))  # [I | 0] gives the trunk's output
    assert fused.state_dict()["2.fusion.weight"].shape == (2, 4)


# --- messages of a malicious peer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"anchors": 2}, r"the two-stream graph takes .* instead of"),
        ({"scalars": 0}, r"the two-stream graph takes .* instead of"),
        ({"anchors": 0}, "a second stream with 0 frozen models"),
        ({"scalars": 99}, "a second stream with 1 frozen models and 99 scalars"),
        ({"values": ()}, "a second stream whose probe has 0 values"),
        ({"graph": b"nonsense"}, "rejected"),
    ],
)
def test_graph_that_contradicts_its_kit_is_rejected(changes: dict[str, Any], message: str) -> None:
    made = kit_of(frozen, FeatureMatch())
    kit = msgspec.structs.replace(made.kit, two_stream=msgspec.structs.replace(stream_of(made.kit), **changes))
    with pytest.raises(GraphRefused, match=message):
        Graphs(kit).loss_and_gradient(made.initial, *batch(kit)[:2], streams=Streams([made.initial], [1.0]))


def test_probe_detects_a_wrong_runtime() -> None:
    kit = kit_of(frozen, FeatureMatch()).kit
    off = msgspec.structs.replace(kit, two_stream=msgspec.structs.replace(stream_of(kit), norm=stream_of(kit).norm * 2))
    assert "in the two-stream graph, the probe's gradient has norm" in str(check_probe(off, Graphs(off)))
    assert differences(kit, off) == []  # the numbers of a probe are not part of a signature
    other = msgspec.structs.replace(kit, two_stream=msgspec.structs.replace(stream_of(kit), graph=kit.train))
    assert differences(kit, other) == ["two_stream"]


def test_plain_weights_load_before_enlarging_larger_ones_after(tmp_path) -> None:
    path = tmp_path / "weights.pt"
    text = f'name = "it"\nstrategy = "STRATEGY"\nmodel.name = "mlp"\nmodel.start = "{path}"\ndata.test = "digits"\n'
    plain, moon = (read_job(text.replace("STRATEGY", name), "it") for name in ("fedavg", "moon"))
    spec = InputSpec((1, 8, 8))
    for job in (plain, moon):
        given = {name: torch.full_like(each, 0.5) for name, each in random_model(job, spec, 10).state_dict().items()}
        torch.save(given, path)
        found = job_model(moon, spec, 10).state_dict()
        assert bool((found["1.weight"] == 0.5).all())
        assert bool((found["3.second.weight"] == 0.5).all()) == (job is moon)
