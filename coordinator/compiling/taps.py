"""Where in a model something is taken out, or put in: what goes into its last linear layer, or what a layer gives."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGITS, PENULTIMATE = "logits", "penultimate"
SHOWN = 20


@dataclass(frozen=True)
class Tap:
    """A place in a model: what the layer of this name is given, or what it gives; no name is the model's answers."""

    layer: str
    given: bool = False

    @contextmanager
    def watched(self, module: nn.Module) -> Iterator[list[Tensor]]:
        """What passes there while the model runs, each time that it does."""
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
    """The place of this name: `logits`, `penultimate` or a layer; ModelError by the setting's key if there is none."""
    if name == LOGITS:
        return Tap("")
    tap = Tap(last_linear(module, x, key), given=True) if name == PENULTIMATE else Tap(name)
    known = [each for each, _ in module.named_modules() if each]
    if tap.layer not in known:
        raise ModelError(
            f"{key}: the model has no layer {name!r}; take {LOGITS!r}, {PENULTIMATE!r}, or one of "
            f"{', '.join(known[:SHOWN])}"
        )
    with torch.no_grad(), tap.watched(_predicting(module)) as seen:
        module(x)
    if not seen or not isinstance(seen[0], Tensor) or not seen[0].is_floating_point() or len(seen[0]) != len(x):
        raise ModelError(f"{key}: the layer {name!r} does not give a row of numbers for each sample; name another")
    return tap


def last_linear(module: nn.Module, x: Tensor, key: str) -> str:
    """The linear layer that makes the model's answers; ModelError where something else makes them."""
    ran: list[tuple[str, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _given, gives, name=name: ran.append((name, gives)))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad():
            answers = _predicting(module)(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not ran or not torch.equal(ran[-1][1].reshape(-1), answers.reshape(-1)):
        raise ModelError(
            f"{key}: the model's answers do not come straight out of a linear layer, so that there is no layer before "
            f"it to look at; name a layer of the model"
        )
    return ran[-1][0]


def _predicting(module: nn.Module) -> nn.Module:
    return module.eval()
