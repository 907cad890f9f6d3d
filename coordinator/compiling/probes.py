"""Synthetic batches, torch's results for them, and the probe that every device compares with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from coordinator.compiling.losses import Learning
from coordinator.compiling.tracing import Trainee
from sojourn.errors import ModelError
from sojourn.model.graphs import GRADIENT_TOLERANCE, LOSS_TOLERANCE, probe_vector, state_indices
from sojourn.protocol.spec import InputSpec, Probe
from sojourn.randomness import derive, generator, noise

# Small enough to index any table, for a model with integer inputs but no embedding.
MIN_VOCABULARY = 2


@dataclass(frozen=True)
class Batch:
    """One batch in the form of the training graph's inputs."""

    x: NDArray[np.generic]
    y: NDArray[np.generic]
    noise: list[NDArray[np.float32]]
    reference_models: tuple[NDArray[np.float32], ...] = ()
    """The parameter vectors of further models for the loss."""


@dataclass(frozen=True)
class ProbeSamples:
    """Draws batches in the form of a job's input."""

    spec: InputSpec
    learning: Learning
    noise: tuple[tuple[int, ...], ...]
    vocabulary: int
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def batch(self, size: int, seed: int, *, coarse: bool = False) -> Batch:
        """Draw a batch of `size`; `coarse` rounds its values, so that maxima tie as in real images."""
        draw = generator(seed, "samples", size)
        shape = (size, *self.spec.shape)
        x: NDArray[np.generic]
        if self.spec.dtype == "int64":
            x = draw.integers(0, self.vocabulary, shape, dtype=np.int64)
        else:
            normal = draw.standard_normal(shape, dtype=np.float32)
            x = (np.round(normal) if coarse else normal) * self.std + self.mean
        return Batch(x, self._targets(draw, size), noise(seed, 0, size, self.noise))

    def _targets(self, draw: np.random.Generator, size: int) -> NDArray[np.generic]:
        task = self.learning.task
        if task.target is None:
            return np.zeros(size, np.int64)
        shape = (size, *task.target.shape)
        if task.target.dtype == "int64":
            return draw.integers(0, task.output[-1], shape, dtype=np.int64)
        if task.kind == "multilabel":
            return draw.integers(0, 2, shape).astype(np.float32)
        normal = draw.standard_normal(shape, dtype=np.float32)
        return np.asarray(self.learning.predictions(torch.from_numpy(normal)).numpy(), np.float32)


def like(
    spec: InputSpec,
    module: nn.Module,
    learning: Learning,
    noise_shapes: tuple[tuple[int, ...], ...],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> ProbeSamples:
    """Return samples whose normalised values are standard normal, or that are valid for every embedding of `module`."""
    sizes = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    sizes += [learning.task.output[-1]] if learning.task.kind == "tokens" else []
    axes = (-1, 1, 1) if len(spec.shape) == 3 else (-1,)
    return ProbeSamples(
        spec,
        learning,
        noise_shapes,
        min(sizes, default=MIN_VOCABULARY),
        np.array([0.0] if mean is None else mean, dtype=np.float32).reshape(axes),
        np.array([1.0] if std is None else std, dtype=np.float32).reshape(axes),
    )


NUDGE = 2e-6


@dataclass(frozen=True)
class TorchResult:
    """The loss, the gradient of each tensor, the outputs and the new state for one batch, all in float64.

    losses: those of each sample, as in prediction; empty for a plain classifier, whose kit has no graph for them.
    """

    loss: NDArray[np.float64]
    gradients: list[NDArray[np.float64]]
    outputs: NDArray[np.float64]
    states: list[NDArray[np.float64]]
    losses: NDArray[np.float64]

    @property
    def gradient(self) -> NDArray[np.float64]:
        """All gradients as one vector."""
        return np.concatenate([part.reshape(-1) for part in self.gradients])

    @property
    def state(self) -> NDArray[np.float64]:
        """The new state as one vector; empty for a model without state."""
        return np.concatenate([np.zeros(0), *(part.reshape(-1) for part in self.states)])


def exact(trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> TorchResult:
    """Return torch's result in double precision, from the same float32 numbers."""
    try:
        with _Doubled():
            return _result(trainee, torch.from_numpy(vector).double(), batch)
    except RuntimeError:  # a layer supports only float32; this is the best available precision
        return rounded(trainee, vector, batch)


def rounded(trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> TorchResult:
    """Return torch's result in float32."""
    return _result(trainee, torch.from_numpy(vector), batch)


def nudged(trainee: Trainee, vector: NDArray[np.float32], batch: Batch, seed: int) -> list[TorchResult]:
    """Return torch's float32 results at two vectors close to this one, on either side of it.

    The distance is about ten times the rounding error of a weight. If a ReLU's input, or the difference of two maxima,
    is so close to zero that rounding may change its sign, part of the gradient appears or vanishes. One of the two
    results then shows it.
    """
    nudge = NUDGE * generator(seed, "nudge").standard_normal(vector.size, dtype=np.float32) * vector
    return [rounded(trainee, vector + nudge, batch), rounded(trainee, vector - nudge, batch)]


def _result(trainee: Trainee, vector: Tensor, batch: Batch) -> TorchResult:
    tensors = trainee.split(vector)
    x, y = torch.from_numpy(np.ascontiguousarray(batch.x)), torch.from_numpy(batch.y)
    x, y = (each.to(vector.dtype) if each.is_floating_point() else each for each in (x, y))
    noise = [torch.from_numpy(values) for values in batch.noise]
    reference_models = [trainee.split(torch.from_numpy(each).to(vector.dtype)) for each in batch.reference_models]
    loss, gradients, states = trainee.loss_and_gradient(tensors, x, y, noise, reference_models)
    with torch.no_grad():
        outputs = trainee.outputs(tensors, x)
        of_loss = reference_models[: len(trainee.learning.task.reference_models)]
        losses = torch.zeros(0) if trainee.learning.plain else trainee.losses(tensors, x, y, of_loss)
    parts = _double(outputs), list(map(_double, states)), _double(losses)
    return TorchResult(_double(loss), list(map(_double, gradients)), *parts)


def _double(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().numpy().astype(np.float64)


class _Doubled(TorchDispatchMode):
    """Converts every float32 input and result of an operator to float64, even where a model calls `.float()`."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator in double precision."""
        return func(*tree_map(_as_double, args), **tree_map(_as_double, dict(kwargs or {})))


def _as_double(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


SAMPLES = 4
SPREAD_PLACES = 24
LARGEST_PLACES = 8
PLAIN = (SAMPLES,) * 2
SPREAD = (SAMPLES, 2, 1, 1, 1, 1)
"""The sizes of the tried batches, at the plain vector and then at one with a spread. Smaller batches are less often
near a kink.
"""
STABLE = 0.1
"""A batch is used at once if rounding and small nudges use less than this share of the devices' tolerance."""
DEFAULT_SPREAD = 0.1
"""The spread of a tensor that is zero at the start."""


@dataclass(frozen=True)
class _Candidate:
    """A batch, the vector's spread, and the share of the devices' tolerance that rounding already uses."""

    batch: Batch
    seed: int
    spread: tuple[float, ...]
    instability: float


def probes(trainee: Trainee, samples: ProbeSamples, seed: int) -> Iterator[Probe]:
    """Yield probes with torch's loss and gradient at spread places and at the largest values, the best first.

    A good probe is a batch for which rounding matters little: otherwise a device whose processor rounds differently
    would refuse a model that it computes correctly. A vector with a spread is used only if the plain vector would
    amplify rounding errors.
    """
    tried = [(size, ()) for size in PLAIN] + [(size, _spread(trainee)) for size in SPREAD]
    others: list[_Candidate] = []
    for number, (size, spread) in enumerate(tried):
        candidate = _candidate(trainee, samples, size, derive(seed, "probe", number), spread)
        if candidate.instability < STABLE:
            yield _probe(trainee, candidate)
        else:
            others.append(candidate)
    for candidate in sorted(others, key=lambda each: each.instability):
        yield _probe(trainee, candidate)


def _spread(trainee: Trainee) -> tuple[float, ...]:
    """Return spreads that keep each tensor's size: numbers spread evenly up to s have a mean square of s²/3."""
    parts = torch.split(trainee.initial.double(), list(trainee.sizes))[: trainee.trained]
    return tuple(float(torch.sqrt(3 * part.square().mean())) or DEFAULT_SPREAD for part in parts)


def _candidate(trainee: Trainee, samples: ProbeSamples, size: int, seed: int, spread: tuple[float, ...]) -> _Candidate:
    vector = _vector(trainee, spread)
    # A device that checks a probe has only this model.
    batch = replace(samples.batch(size, seed), reference_models=(vector,) * len(trainee.learning.task.reference_models))
    result = rounded(trainee, vector, batch)
    # Two on either side: if one misses a kink, the other may find it.
    others = [*nudged(trainee, vector, batch, seed), *nudged(trainee, vector, batch, derive(seed, "again"))]
    return _Candidate(batch, seed, spread, max(_difference(result, other) for other in others))


def _vector(trainee: Trainee, spread: tuple[float, ...]) -> NDArray[np.float32]:
    return probe_vector(trainee.sizes, spread, len(trainee.sizes) - trainee.trained)


def _difference(result: TorchResult, other: TorchResult) -> float:
    """Return the difference of two results as a share of a device's tolerance (`sojourn.model.graphs`)."""
    loss, gradient, there = float(result.loss), result.gradient, other.gradient
    norm, largest = float(np.linalg.norm(gradient)), float(np.abs(gradient).max(initial=0))
    apart = [
        abs(float(other.loss) - loss) / (LOSS_TOLERANCE * max(1.0, abs(loss))),
        abs(float(np.linalg.norm(there)) - norm) / (GRADIENT_TOLERANCE * norm) if norm else 0.0,
        float(np.abs(there - gradient).max(initial=0)) / (GRADIENT_TOLERANCE * largest) if largest else 0.0,
    ]
    return max(apart) if np.isfinite(apart).all() else np.inf


def _probe(trainee: Trainee, taken: _Candidate) -> Probe:
    result = exact(trainee, _vector(trainee, taken.spread), taken.batch)
    batch, gradient = taken.batch, result.gradient
    if not np.isfinite(result.loss) or not np.isfinite(gradient).all():
        raise ModelError(
            f"the model's loss on generated samples is {float(result.loss):.6g}, or its gradient is not finite: "
            "check data.mean and data.std, and divisions, logarithms and roots in the model and its loss"
        )
    spread = np.linspace(0, gradient.size - 1, min(SPREAD_PLACES, gradient.size)).astype(np.int64)
    largest = np.argsort(-np.abs(gradient), kind="stable")[:LARGEST_PLACES]
    places = np.union1d(spread, largest)
    task = trainee.learning.task
    classified = task.kind == "classification"
    return Probe(
        x=np.ascontiguousarray(batch.x).tobytes(),
        y=tuple(int(label) for label in batch.y) if classified else (0,) * len(batch.y),
        noise_seed=taken.seed,
        loss=float(result.loss),
        norm=float(np.linalg.norm(gradient)),
        places=tuple(int(place) for place in places),
        values=tuple(float(value) for value in gradient[places]),
        spread=taken.spread,
        state=tuple(float(value) for value in result.state[state_indices(result.state.size)]),
        targets=b"" if classified or task.target is None else np.ascontiguousarray(batch.y).tobytes(),
    )
