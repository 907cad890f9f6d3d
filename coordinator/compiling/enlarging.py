"""Models that a strategy enlarges: MOON's projection before the last layer, FedFusion's operator behind the trunk.

What is added is a part of the model: it is trained, travels in the vector, and is merged like the rest. It is always
trained, also where a job trains only some layers, and is drawn from the job's seed by a stream of its own, so that the
other layers are those of the model without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coordinator.compiling.fusing import FusedLayer, FusionLayer
from coordinator.compiling.taps import Tap, last_linear, tap_of
from sojourn.errors import ModelError
from sojourn.parts import Fusion, Moon
from sojourn.randomness import derive

if TYPE_CHECKING:
    from sojourn.parts import Part
    from sojourn.protocol.spec import InputSpec

SEED_RANGE = 1 << 63
TRUNK = "trunk"
"""The layer that FedFusion takes unless told: where the last map of an image model is, before it is flattened."""
MAP_AXES = 3
"""A map has the samples, channels and at least one axis more."""


class ProjectedHead(nn.Module):
    """MOON's last layers: two linear ones that make the representation, and the one that answers."""

    def __init__(self, last: nn.Linear, width: int) -> None:
        """In place of `last`, with a representation of `width` numbers."""
        super().__init__()
        self.first = nn.Linear(last.in_features, last.in_features)
        self.second = nn.Linear(last.in_features, width)
        self.last = nn.Linear(width, last.out_features, bias=last.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        """The answers."""
        answers: Tensor = self.last(self.second(torch.relu(self.first(x))))
        return answers


def enlarged(module: nn.Module, objective: Part, spec: InputSpec, seed: int) -> nn.Module:
    """The model with what an objective adds to it: itself, where that is nothing."""
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
        raise ModelError(f"{key}: what the model answers has no head behind it; name a layer before the last one")
    with torch.no_grad(), tap.watched(module.eval()) as seen:
        module(x)
    if len(seen) != 1 or seen[0].dim() <= 1:
        raise ModelError(f"{key}: {tap.layer!r} runs {len(seen)} times for a batch, and must run once")
    channels = int(seen[0].shape[1] if seen[0].dim() > MAP_AXES else seen[0].shape[-1])
    fusion = FusionLayer(objective.operator, channels, first=seen[0].dim() > MAP_AXES)
    return _replaced(module, tap.layer, FusedLayer(module.get_submodule(tap.layer), fusion, before=tap.given))


def _trunk(module: nn.Module, x: Tensor, key: str) -> Tap:
    """The last layer that gives a map of channels first; without one, what goes into the last linear layer."""
    maps: list[str] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _given, gives, name=name: _note(maps, name, gives))
        for name, layer in module.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            module.eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    return Tap(maps[-1]) if maps else Tap(last_linear(module, x, key), given=True)


def _note(maps: list[str], name: str, gives: object) -> None:
    if isinstance(gives, Tensor) and gives.dim() > MAP_AXES:
        maps.append(name)


def _replaced(module: nn.Module, name: str, other: nn.Module) -> nn.Module:
    """The model with another layer in the place of one."""
    if not name:
        return other
    above, _, last = name.rpartition(".")
    setattr(module.get_submodule(above), last, other)
    return module
