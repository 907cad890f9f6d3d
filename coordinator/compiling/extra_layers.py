"""Layers that a strategy reads or adds: taps, MOON's projection and FedFusion's operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sojourn.errors import ModelError
from sojourn.parts import Fusion, Moon, Part
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import derive

LOGITS, PENULTIMATE = "logits", "penultimate"
MAX_LISTED = 20


@dataclass(frozen=True)
class Tap:
    """A place in a model: the input or the output of the named layer; without a name the model's output."""

    layer: str
    given: bool = False

    @contextmanager
    def watched(self, module: nn.Module) -> Iterator[list[Tensor]]:
        """Collect the tensors at this place while the context is open, one for each run of the model."""
        seen: list[Tensor] = []
        place = module.get_submodule(self.layer)
        hook = (
            place.register_forward_pre_hook(lambda _layer, given: seen.append(given[0]))
            if self.given
            else place.register_forward_hook(lambda _layer, _given, gives: seen.append(gives))
        )
        try:
            yield seen
        finally:
            hook.remove()


def tap_of(name: str, module: nn.Module, x: Tensor, key: str) -> Tap:
    """Return the place of this name: `logits`, `penultimate` or a layer; a ModelError names the setting's key."""
    if name == LOGITS:
        return Tap("")
    tap = Tap(last_linear(module, x, key), given=True) if name == PENULTIMATE else Tap(name)
    known = [each for each, _ in module.named_modules() if each]
    if tap.layer not in known:
        raise ModelError(
            f"{key}: the model has no layer {name!r}; set {LOGITS!r}, {PENULTIMATE!r}, or one of "
            f"{', '.join(known[:MAX_LISTED])}"
        )
    with torch.no_grad(), tap.watched(module.eval()) as seen:
        module(x)
    if not seen or not isinstance(seen[0], Tensor) or not seen[0].is_floating_point() or len(seen[0]) != len(x):
        raise ModelError(f"{key}: the layer {name!r} does not output a row of numbers for each sample; choose another")
    return tap


def last_linear(module: nn.Module, x: Tensor, key: str) -> str:
    """Return the linear layer that computes the model's output; ModelError if another operation does."""
    ran = _layer_outputs(module, x)
    linear = [(name, gives) for name, gives in ran if isinstance(module.get_submodule(name), nn.Linear)]
    if not linear or not torch.equal(linear[-1][1].reshape(-1), ran[-1][1].reshape(-1)):
        raise ModelError(
            f"{key}: the model's outputs do not come directly from a linear layer, so no layer before it is known; "
            f"set a layer of the model"
        )
    return linear[-1][0]


def _layer_outputs(module: nn.Module, x: Tensor) -> list[tuple[str, Any]]:
    """Run the model as in prediction; return each layer's name and output as the layer ends, the whole model last."""
    ran: list[tuple[str, Any]] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _given, gives, name=name: ran.append((name, gives)))
        for name, layer in module.named_modules()
    ]
    try:
        with torch.no_grad():
            module.eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    return ran


# FedFusion's operator fuses the outputs of the trained trunk and of a frozen trunk into one input of the head.
#
# Yao, Huang, Wu, Zhang and Sun: "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019.


class FusionLayer(nn.Module):
    """F(l, g) with l of the trained trunk and g of the frozen one; without a frozen trunk g is l.

    `single` and `multi`: gamma g + (1 - gamma) l, which starts with gamma 0; without a frozen trunk it is l for any
    gamma. `conv`: a 1x1 convolution of both, which starts as [I | 0], so its output is l.
    """

    def __init__(self, operator: str, channels: int, *, first: bool) -> None:
        """Create the operator for maps with these channels, in the first axis after the samples or in the last one."""
        super().__init__()
        self._first, self.given, self.seen = first, None, None
        if operator == "conv":
            self.weight = nn.Parameter(torch.cat([torch.eye(channels), torch.zeros(channels, channels)], 1))
            self.bias = nn.Parameter(torch.zeros(channels))
        else:
            self.gamma = nn.Parameter(torch.zeros(channels if operator == "multi" else 1))

    given: Tensor | None
    """The output of the frozen trunk, if there is one."""
    seen: Tensor | None
    """The last output of the trained trunk."""

    def forward(self, here: Tensor) -> Tensor:
        """Return the input of the head."""
        self.seen, there = here, self.given
        if hasattr(self, "weight"):
            return self._mixed(here, here if there is None else there)
        if there is None:
            return here
        gamma = self._wide(self.gamma, here)
        return gamma * there + (1 - gamma) * here

    def _mixed(self, here: Tensor, there: Tensor) -> Tensor:
        both = torch.cat([here, there], 1 if self._first else -1)
        if not self._first:
            return nn.functional.linear(both, self.weight, self.bias)
        flat = both.flatten(2).transpose(1, 2)
        return nn.functional.linear(flat, self.weight, self.bias).transpose(1, 2).reshape(here.shape)

    def _wide(self, values: Tensor, like: Tensor) -> Tensor:
        return values.reshape(1, -1, *(1 for _ in like.shape[2:])) if self._first else values


class FusedLayer(nn.Module):
    """A layer with the fusion after it, or before it if the layer is the head."""

    def __init__(self, layer: nn.Module, fusion: FusionLayer, *, before: bool) -> None:
        super().__init__()
        self.layer, self.fusion, self._before = layer, fusion, before

    def forward(self, x: Tensor) -> Tensor:
        """Return the fused output of the layer, or the layer's output for the fused input."""
        found: Tensor = self.layer(self.fusion(x)) if self._before else self.fusion(self.layer(x))
        return found


def fusion_in(module: nn.Module) -> FusionLayer:
    """Return the only fusion layer of a model."""
    return next(layer for layer in module.modules() if isinstance(layer, FusionLayer))


@contextmanager
def fused_with(fusion: FusionLayer, given: Tensor) -> Iterator[None]:
    """Fuse the model with the output of a frozen trunk while the context is open."""
    fusion.given = given
    try:
        yield
    finally:
        fusion.given = None


# Models that a strategy enlarges: MOON's projection before the last layer, FedFusion's operator after the trunk.
#
# The added layers are part of the model: they are trained, travel in the vector, and are merged like the rest. They
# are trained even if a job trains only some layers. They are drawn from a separate random stream of the job's seed, so
# the other layers are the same as without them.

SEED_RANGE = 1 << 63
TRUNK = "trunk"
"""FedFusion's default layer: the last map of an image model, before it is flattened."""
MAP_AXES = 3
"""A map has axes for samples, channels and at least one more."""


class ProjectedHead(nn.Module):
    """MOON's last layers: two linear ones that compute the representation, and the output layer."""

    def __init__(self, last: nn.Linear, width: int) -> None:
        """Replace `last`, with a representation of `width` numbers."""
        super().__init__()
        self.first = nn.Linear(last.in_features, last.in_features)
        self.second = nn.Linear(last.in_features, width)
        self.last = nn.Linear(width, last.out_features, bias=last.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = self.last(self.second(torch.relu(self.first(x))))
        return outputs


def enlarged(module: nn.Module, objective: Part, spec: InputSpec, seed: int) -> nn.Module:
    """Return the model with the layers that an objective adds, if any."""
    x = torch.zeros((2, *spec.shape), dtype=getattr(torch, spec.dtype))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "enlarged") % SEED_RANGE)
        match objective:
            case Moon() if objective.projection:
                return _projected(module, objective.projection, x)
            case Fusion():
                return _fused(module, objective, x)
            case _:
                return module


def _projected(module: nn.Module, width: int, x: Tensor) -> nn.Module:
    name = last_linear(module, x, "strategy moon")
    last = module.get_submodule(name)
    if not isinstance(last, nn.Linear):
        raise ModelError(f"strategy moon: layer {name!r} is not linear")
    return _replaced(module, name, ProjectedHead(last, width))


def _fused(module: nn.Module, objective: Fusion, x: Tensor) -> nn.Module:
    key = "objective.layer of fusion"
    tap = _trunk(module, x, key) if objective.layer == TRUNK else tap_of(objective.layer, module, x, key)
    if not tap.layer:
        raise ModelError(f"{key}: the model's output has no head after it; choose a layer before the last one")
    with torch.no_grad(), tap.watched(module.eval()) as seen:
        module(x)
    if len(seen) != 1 or seen[0].dim() <= 1:
        raise ModelError(f"{key}: {tap.layer!r} runs {len(seen)} times for a batch; it must run once")
    channels = int(seen[0].shape[1] if seen[0].dim() > MAP_AXES else seen[0].shape[-1])
    fusion = FusionLayer(objective.operator, channels, first=seen[0].dim() > MAP_AXES)
    return _replaced(module, tap.layer, FusedLayer(module.get_submodule(tap.layer), fusion, before=tap.given))


def _trunk(module: nn.Module, x: Tensor, key: str) -> Tap:
    """Return the last layer that outputs a map with channels first, or else the input of the last linear layer."""
    ran = _layer_outputs(module, x)
    maps = [name for name, gives in ran if name and isinstance(gives, Tensor) and gives.dim() > MAP_AXES]
    return Tap(maps[-1]) if maps else Tap(last_linear(module, x, key), given=True)


def _replaced(module: nn.Module, name: str, other: nn.Module) -> nn.Module:
    """Replace a layer of the model."""
    if not name:
        return other
    above, _, last = name.rpartition(".")
    setattr(module.get_submodule(above), last, other)
    return module
