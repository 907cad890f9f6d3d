"""Random numbers that are given from outside, so that a graph stays a function of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from coordinator.compiling.layers import LayerRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._ops import OpOverload

    Sizes = tuple[int, ...]

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """What one call for random numbers takes for each sample, and where the samples lie in what it gets."""

    shape: Sizes
    """Of the numbers for one sample."""
    axis: int | None = 0
    """Along which the samples lie; None where all samples share their numbers, which are then those of the first."""
    rows: bool = False
    """Whether each sample has several rows there, such as the heads of an attention: they are the shape's `axis`."""

    def laid_out(self, noise: Tensor) -> Tensor:
        """The numbers of a batch (samples first) as the call wants them."""
        if self.axis is None:
            return noise[0]
        moved = noise.movedim(0, self.axis) if self.axis else noise
        return moved.flatten(self.axis, self.axis + 1) if self.rows else moved


def draw_between(first: Sizes, second: Sizes, batches: tuple[int, int]) -> Draw:
    """The draw that asks for `first` in a batch of the one size and for `second` in one of the other."""
    differing = [axis for axis, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    if not differing:
        return Draw(first, None)
    axis = differing[0]
    rows = first[axis] // batches[0]
    if len(differing) > 1 or (first[axis], second[axis]) != (rows * batches[0], rows * batches[1]):
        raise LayerRefused(f"its random numbers are {first} for {batches[0]} samples and {second} for {batches[1]}")
    own = (rows,) if rows > 1 else ()
    return Draw((*first[:axis], *own, *first[axis + 1 :]), axis, rows > 1)


class NoiseFeed:
    """Hands out noise in the order of the calls, and remembers what was asked for."""

    def __init__(self) -> None:
        """Start without noise."""
        self.draws: tuple[Draw, ...] = ()
        self.asked: list[Sizes] = []
        self.to_functions = False
        """Whether some of it went to functions and not to layers."""
        self._noise: Sequence[Tensor] | None = None

    def give(self, noise: Sequence[Tensor] | None) -> None:
        """Use `noise` for the next forward pass; None only records what is asked for."""
        self._noise = noise
        self.asked = []

    def take(self, size: Sequence[int], like: Tensor) -> Tensor:
        """The noise for one call, evenly spread from 0 to 1."""
        self.asked.append(tuple(size))
        if self._noise is None:
            return like.new_full(tuple(size), 0.999)
        at = len(self.asked) - 1
        return self.draws[at].laid_out(self._noise[at])


def learn_draws(module: nn.Module, feed: NoiseFeed, x: Tensor) -> Any:
    """Run a batch of `x` through a module in training, and let the feed learn what is asked for; returns the answers.

    From then on functions of the module take their noise from the feed too.
    A second batch of another size shows along which axis of each draw the samples lie.
    """
    module.forward = FedForward(module, feed)
    feed.give(None)
    answers = module(x)
    if asked := feed.asked:
        feed.give(None)
        module(torch.cat([x, x[:1]]))
        batches = len(x), len(x) + 1
        feed.draws = tuple(draw_between(*sizes, batches) for sizes in zip(asked, feed.asked, strict=True))
    return answers


class FedRandomness(TorchDispatchMode):
    """Gives functions that drop at random their noise from the feed.

    `F.dropout`, attention with dropout and torchvision's stochastic depth all come down to the two operators here.
    """

    def __init__(self, feed: NoiseFeed, *, training: bool) -> None:
        """Refuse them in prediction, which must not be random."""
        super().__init__()
        self._feed, self._training = feed, training

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, or what stands for it."""
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
            raise LayerRefused("it drops at random in prediction too: write F.dropout(x, p, self.training)")
        self._feed.to_functions = True
        return self._feed.take(x.shape, x)


class FedForward:
    """The forward pass of a model whose random functions take their noise from a feed."""

    def __init__(self, module: nn.Module, feed: NoiseFeed) -> None:
        """Stand before the forward pass that `module` has now."""
        self._module, self._feed, self._forward = module, feed, module.forward

    def __call__(self, *inputs: Any) -> Any:
        """Run it, in training or in prediction as the module is set."""
        with FedRandomness(self._feed, training=self._module.training):
            return self._forward(*inputs)
