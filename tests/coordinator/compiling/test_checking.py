"""Tests of the check of compiled kits: it accepts rounding and kinks, and refuses wrong graphs."""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator.compiling import checking, compile_kit, kits, probes
from coordinator.compiling.checking import Exam, Kind, check_kit, kinds
from coordinator.compiling.losses import classifying
from coordinator.compiling.normalisation import normalised
from coordinator.compiling.probes import Batch, exact, like, nudged, rounded
from coordinator.compiling.randomness import NoiseFeed
from coordinator.compiling.tracing import Trainee
from coordinator.models import build
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import InputSpec, Kit
from tests.coordinator.compiling import mutants
from tests.coordinator.compiling.mutants import CLASSES, fate, is_refused

JUDGED, TRIED = 1, 5
"""How many wrong graphs of each kind are judged, and from how many; `python -m tests.coordinator.compiling.mutants`
judges all.
"""


@pytest.fixture(scope="module")
def right() -> tuple[Kit, NDArray[np.float32], Exam]:
    return mutants.right()


def test_every_kind_of_wrong_graph_is_rejected(right: tuple[Kit, NDArray[np.float32], Exam]) -> None:
    kit, initial, exam = right
    by_kind = defaultdict(list)
    for mutant in mutants.mutants(kit):
        by_kind[mutant.kind].append(mutant)
    assert {"wrong sign", "twice as much", "no bias", "stale dropout", "pads is another", "axes swapped"} < set(by_kind)
    judged = 0
    for found in by_kind.values():
        wrong = (each for each in found[len(found) // 3 :][:TRIED] if fate(each, kit, initial) == "wrong")
        for mutant in islice(wrong, JUDGED):
            assert is_refused(mutant, exam), (mutant.kind, mutant.where)
            judged += 1
    assert judged >= 15


class SometimesOff(Graphs):
    """The correct graphs, but with an error of 10 percent in the first gradient for some batches, like a kink."""

    def __init__(self, kit: Kit, off: list[bool]) -> None:
        super().__init__(kit)
        self._off = cycle(off)

    def loss_gradient_and_state(self, vector, x, y, noise=(), reference_models=(), streams=None):
        loss, gradient, state = super().loss_gradient_and_state(vector, x, y, noise, reference_models, streams)
        changed = gradient.copy()
        changed[:20] *= 1.1 if next(self._off) else 1.0
        return loss, changed, state


@pytest.mark.parametrize(
    ("off", "refused"),
    [([True, False, False, True, False], False), ([True, False, True, True, False], True), ([True], True)],
)
def test_graph_is_rejected_if_most_batches_disagree(right, monkeypatch, off: list[bool], refused: bool) -> None:
    kit, _, exam = right
    monkeypatch.setattr(checking, "Graphs", lambda kit, threads: SometimesOff(kit, off))
    exam = Exam(exam._trainee, exam._samples, 5, 16)
    monkeypatch.setattr(exam, "kinds", (Kind(2),))
    if refused:
        count = f"{checking.BATCHES_PER_KIND if len(off) == 1 else 3} of 5"
        with pytest.raises(ModelError, match=rf"the gradient of 0\.weight differs by .* of its norm .*{count}"):
            check_kit(kit, exam)
    else:
        check_kit(kit, exam)


class Kinked(nn.Module):
    """A model whose second weight's gradient jumps with the sign of a gate."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([at]))
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.relu(self.gate - 0.3) * 1e6
        logits: Tensor = self.linear(x) * (1 + gate)
        return logits


def one_batch(module: nn.Module) -> tuple[Trainee, Batch]:
    spec = InputSpec((2,))
    trainee = Trainee(normalised(module, spec, None, None), NoiseFeed(), classifying(2))
    return trainee, like(spec, module, classifying(2), (), None, None).batch(4, 1)


def test_kink_near_vector_is_found_by_nudging() -> None:
    torch.manual_seed(0)
    shown = {}
    for at in (0.3 + 1e-7, 0.4):
        trainee, batch = one_batch(Kinked(at))
        vector = trainee.initial.numpy()
        assert rounded(trainee, vector, batch).gradients[0].any()
        looks = [nudged(trainee, vector, batch, seed) for seed in range(10)]
        shown[at] = sum(any(not other.gradients[0].any() for other in look) for look in looks)
    assert shown[0.4] == 0
    assert shown[0.3 + 1e-7] >= 7


class CastsToFloat(nn.Module):
    """A model that casts to float32, and has a constant that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scale = torch.tensor([[0.1, 0.7], [0.2, 0.9]])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.float() @ self.scale + torch.ones(2, dtype=torch.float32) / 3)
        return logits


def test_reference_uses_double_precision_despite_float_casts() -> None:
    torch.manual_seed(0)
    module = CastsToFloat()
    trainee, batch = one_batch(module)
    truth = exact(trainee, trainee.initial.numpy(), batch)
    weight, bias = (p.detach().numpy().astype(np.float64) for p in (module.linear.weight, module.linear.bias))
    scale = module.scale.numpy().astype(np.float64)
    logits = (batch.x.astype(np.float64) @ scale + 1 / 3) @ weight.T + bias
    np.testing.assert_allclose(truth.outputs, logits, rtol=1e-14)
    assert np.abs(rounded(trainee, trainee.initial.numpy(), batch).outputs - logits).max() > 1e-9


def test_check_passes_for_every_seed() -> None:
    """With a fixed tolerance, 4 of 30 seeds of `cnn` and half of those of `resnet8` at 64x64 were refused; these are
    quicker.
    """
    spec = InputSpec((3, 32, 32))
    kit = compile_kit(build("cnn", spec, 4, {}, 0), spec, CLASSES, mean=[160.0], std=[90.0], seed=0).kit
    for seed in range(1, 4):
        module = build("cnn", spec, 4, {}, seed)
        trainee = Trainee(normalised(module, spec, [160.0], [90.0]), NoiseFeed(), classifying(4))
        check_kit(kit, Exam(trainee, like(spec, module, classifying(4), (), [160.0], [90.0]), seed, 16))


def test_batch_sizes_include_job_batch_up_to_a_limit() -> None:
    assert [kind.size for kind in kinds(10)] == [1, 2, 7, 10, 3, 5]
    assert max(kind.size for kind in kinds(4096)) == checking.MAX_SAMPLES


def linear(**options: Any) -> Kit:
    torch.manual_seed(0)
    return compile_kit(nn.Linear(3, 4), InputSpec((3,)), CLASSES, mean=None, std=None, seed=2, **options).kit


def test_failing_probe_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = linear().probe
    missed = [first]
    monkeypatch.setattr(kits, "check_probe", lambda kit, _graphs: "off" if kit.probe in missed else None)
    second = linear().probe
    assert second not in missed
    monkeypatch.setattr(kits, "check_probe", lambda _kit, _graphs: "it is off")
    with pytest.raises(ModelError, match="at the probe: it is off"):
        linear()


def test_spread_is_used_only_if_plain_vector_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert linear().probe.spread == ()
    monkeypatch.setattr(probes, "PLAIN", ())
    probe = linear().probe
    assert len(probe.spread) == 2
    assert all(0 < each < 1 for each in probe.spread)


def test_compile_steps_are_reported_in_order() -> None:
    steps: list[str] = []
    compile_kit(nn.Linear(3, 4), InputSpec((3,)), CLASSES, mean=None, std=None, seed=2, report=steps.append)
    count = len(kinds(16))
    assert steps[:4] == [
        "checking the layers", "writing the training graph", "writing the prediction graph", "computing the probe",
    ]  # fmt: skip
    assert steps[4:] == [f"checking the gradient ({at} of {count})" for at in range(1, count + 1)]
