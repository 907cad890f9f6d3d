"""Random numbers as inputs of a graph: for dropout, stochastic depth and every other random operator."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from coordinator.compiling.layer_errors import LayerRefused

Sizes = tuple[int, ...]

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """The random numbers of one call: their shape for each sample, and the axis of the samples."""

    shape: Sizes
    """The shape of the numbers for one sample."""
    axis: int | None = 0
    """The axis of the samples; None if all samples share the numbers, which are then those of the first."""
    rows: bool = False
    """Whether each sample has several rows on that axis, such as the heads of an attention: they are the shape's
    `axis`.
    """

    def arranged(self, noise: Tensor) -> Tensor:
        """Arrange the numbers of a batch (samples first) in the shape of the call."""
        if self.axis is None:
            return noise[0]
        moved = noise.movedim(0, self.axis) if self.axis else noise
        return moved.flatten(self.axis, self.axis + 1) if self.rows else moved


def draw_between(first: Sizes, second: Sizes, batches: tuple[int, int]) -> Draw:
    """Infer the draw from its sizes, `first` and `second`, in two batches of different sizes."""
    changed_axes = [axis for axis, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    if not changed_axes:
        return Draw(first, None)
    axis = changed_axes[0]
    rows = first[axis] // batches[0]
    if len(changed_axes) > 1 or (first[axis], second[axis]) != (rows * batches[0], rows * batches[1]):
        shapes = f"{first} for {batches[0]} samples and {second} for {batches[1]}"
        raise LayerRefused(f"its random numbers have shape {shapes}")
    per_sample = (rows,) if rows > 1 else ()
    return Draw((*first[:axis], *per_sample, *first[axis + 1 :]), axis, rows > 1)


class NoiseFeed:
    """Supplies noise in the order of the calls, and records what they request."""

    def __init__(self) -> None:
        """Start without noise."""
        self.draws: tuple[Draw, ...] = ()
        self.requested: list[Sizes] = []
        self.to_functions = False
        """Whether some of it was for functions and not for layers."""
        self._noise: Sequence[Tensor] | None = None

    def give(self, noise: Sequence[Tensor] | None) -> None:
        """Use `noise` for the next forward pass; None only records the requests."""
        self._noise = noise
        self.requested = []

    def take(self, size: Sequence[int], like: Tensor) -> Tensor:
        """Return the noise for one call, uniform in [0, 1)."""
        self.requested.append(tuple(size))
        if self._noise is None:
            return like.new_full(tuple(size), 0.999)
        at = len(self.requested) - 1
        return self.draws[at].arranged(self._noise[at])


def learn_draws(module: nn.Module, feed: NoiseFeed, x: Tensor) -> Any:
    """Run a batch of `x` through a module in training, so that the feed records the draws; return the outputs.

    After that the module's functions also take their noise from the feed. A second batch of another size shows the axis
    of the samples in each draw.
    """
    module.forward = FedForward(module, feed)
    feed.give(None)
    outputs = module(x)
    if first := feed.requested:
        feed.give(None)
        module(torch.cat([x, x[:1]]))
        batches = len(x), len(x) + 1
        feed.draws = tuple(draw_between(*sizes, batches) for sizes in zip(first, feed.requested, strict=True))
    return outputs


class FedRandomness(TorchDispatchMode):
    """Gives functions that drop at random their noise from the feed.

    `F.dropout`, attention with dropout and torchvision's stochastic depth all use the two operators here.
    """

    def __init__(self, feed: NoiseFeed, *, training: bool) -> None:
        """Use `feed`; in prediction, refuse random operators."""
        super().__init__()
        self._feed, self._training = feed, training

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, or its replacement."""
        if func is aten.native_dropout.default:
            return self._dropout(*args)
        if func is aten.bernoulli_.float:
            return self._bernoulli(*args)
        return func(*args, **(kwargs or {}))

    def _dropout(self, x: Tensor, p: float, _train: bool | None = None) -> tuple[Tensor, Tensor]:
        if p == 1:  # as torch does it, without a draw
            return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
        keep = self._noise(x) >= p
        return x * (keep.to(x.dtype) * (1.0 / (1.0 - p))), keep

    def _bernoulli(self, x: Tensor, p: float = 0.5) -> Tensor:
        return x.copy_((self._noise(x) >= 1.0 - p).to(x.dtype))

    def _noise(self, x: Tensor) -> Tensor:
        if not self._training:
            raise LayerRefused("it also drops at random in prediction: write F.dropout(x, p, self.training)")
        self._feed.to_functions = True
        return self._feed.take(x.shape, x)


class FedForward:
    """The forward pass of a model whose random functions take their noise from a feed."""

    def __init__(self, module: nn.Module, feed: NoiseFeed) -> None:
        """Wrap the current forward pass of `module`."""
        self._module, self._feed, self._forward = module, feed, module.forward

    def __call__(self, *inputs: Any) -> Any:
        """Run the forward pass, in training or in prediction as the module is set."""
        with FedRandomness(self._feed, training=self._module.training):
            return self._forward(*inputs)


class FedDropout(nn.Module):
    """Dropout with mask = (noise >= p) / (1 - p); with `channels`, whole channels share a number."""

    def __init__(self, p: float, channels: bool, feed: NoiseFeed) -> None:
        """Take the noise from `feed`."""
        super().__init__()
        self.p, self.channels, self.feed = p, channels, feed
        # Errors name the original layer.
        self.replaces = "Dropout"

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training, pass through in prediction."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        size = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape
        keep = (self.feed.take(size, x) >= self.p).to(x.dtype)
        return x * (keep * (1.0 / (1.0 - self.p)))


def with_fed_dropout(module: nn.Module) -> tuple[nn.Module, NoiseFeed]:
    """Return a copy of `module` whose dropout takes its noise from the returned feed."""
    feed = NoiseFeed()
    if _is_dropout(module):
        return _fed(module, feed), feed
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_dropout(child):
                setattr(parent, name, _fed(child, feed))
    return module, feed


def _is_dropout(module: nn.Module) -> bool:
    return type(module) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _fed(module: nn.Module, feed: NoiseFeed) -> FedDropout:
    p = module.p
    if not isinstance(p, float | int):
        raise TypeError(f"dropout with p = {p!r}")
    return FedDropout(float(p), type(module) is not nn.Dropout, feed)
