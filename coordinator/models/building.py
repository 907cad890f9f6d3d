"""Finds a model by its name and builds it, with its own seed and with options that are checked."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch
from torch import nn

from coordinator.models.cnn import cnn
from coordinator.models.mlp import mlp
from coordinator.models.resnet8 import resnet8
from coordinator.models.torchvision_import import make_torchvision_importable
from sojourn.errors import ConfigError, ModelError
from sojourn.parts.own import own_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sojourn.protocol.spec import InputSpec

BUILT_IN: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn, "resnet8": resnet8}
SEED_RANGE = 1 << 63


def build(name: str, input: InputSpec, classes: int, options: Mapping[str, object], seed: int) -> nn.Module:  # noqa: A002
    """The model `name` with weights drawn from `seed`; torch's own random state stays as it was."""
    if name in BUILT_IN:
        maker, fixed = BUILT_IN[name], {"input": input, "classes": classes}
    elif ":" in name:
        maker, fixed = _own(name), {}
    else:
        raise ModelError(
            f"there is no model {name!r}{_nearest(name, BUILT_IN)}; or name your own as package.module:Class"
        )
    _check_options(name, maker, options, fixed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % SEED_RANGE)
        try:
            model = maker(**fixed, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"{name} cannot be built with {dict(options)}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module")
    return model


def _own(name: str) -> Callable[..., nn.Module]:
    path, _, attribute = name.partition(":")
    make_torchvision_importable()
    try:
        module = own_module(path)
    except ConfigError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    maker = getattr(module, attribute, None)
    if maker is None:
        found = [key for key, value in vars(module).items() if _is_module_class(value)]
        raise ModelError(f"{path} has no {attribute!r}{_nearest(attribute, found)}")
    if not _is_module_class(maker):
        raise ModelError(f"{name} is not a class of torch.nn.Module")
    chosen: Callable[..., nn.Module] = maker
    return chosen


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _check_options(
    name: str, maker: Callable[..., nn.Module], options: Mapping[str, object], fixed: Mapping[str, object]
) -> None:
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [key for key in parameters if key not in fixed]
    for key in options:
        if key not in known:
            raise ModelError(f"{name} has no option {key!r}{_nearest(key, known)}")


def _nearest(word: str, known: Mapping[str, object] | list[str]) -> str:
    match = get_close_matches(word, list(known), n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f" (known: {', '.join(known)})" if known else ""
