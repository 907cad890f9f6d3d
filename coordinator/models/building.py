"""Finds a model by its name and builds it, with its own seed and with options that are checked."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import nn

from coordinator.models.autoencoder import autoencoder
from coordinator.models.cnn import cnn
from coordinator.models.gru import Gru, gru
from coordinator.models.mlp import mlp
from coordinator.models.nearest import nearest
from coordinator.models.resnet8 import resnet8
from coordinator.models.torchvision_import import make_torchvision_importable
from coordinator.models.torchvision_models import PREFIX, torchvision_maker
from sojourn.errors import ConfigError, ModelError
from sojourn.parts.own import own_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sojourn.protocol.spec import InputSpec, Shape

BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "autoencoder": autoencoder,
    "gru": gru,
}
SEED_RANGE = 1 << 63


def build(
    name: str,
    input: InputSpec,  # noqa: A002
    classes: int | Shape,
    options: Mapping[str, object],
    seed: int,
    path: str | None = None,
) -> nn.Module:
    """The model `name` with weights drawn from `seed`; torch's own random state stays as it was.

    classes: how many numbers it answers for a sample, or in which shape.
    path: the folder in which a class of one's own is, if it is in none where it would be found anyway.
    """
    output = (classes,) if isinstance(classes, int) else classes
    maker = _maker(name, input, output, path)
    _check_options(name, maker, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % SEED_RANGE)
        try:
            model = maker(**options)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ModelError(f"{name} cannot be built with {dict(options)}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module")
    return model if ":" in name and not name.startswith(PREFIX) else _in_shape(model, output, input)


def _in_shape(model: nn.Module, output: Shape, input: InputSpec) -> nn.Module:  # noqa: A002
    """The model with its row of numbers in the shape in which they are compared with targets."""
    if len(output) == 1 or (isinstance(model, Gru) and input.dtype == "int64"):
        return model
    if isinstance(model, nn.Sequential):  # whose tensors keep their names so
        return model.append(nn.Unflatten(1, output))
    return nn.Sequential(OrderedDict(model=model, shaped=nn.Unflatten(1, output)))


def _maker(name: str, input: InputSpec, output: Shape, path: str | None) -> Callable[..., nn.Module]:  # noqa: A002
    """What makes the model of its options alone."""
    if name == "gru":
        return partial(gru, input=input, output=output)
    if name in BUILT_IN:
        return partial(BUILT_IN[name], input=input, classes=prod(output))
    if name.startswith(PREFIX):
        return torchvision_maker(name.removeprefix(PREFIX), input, prod(output))
    if ":" in name:
        return _own(name, path)
    raise ModelError(
        f"there is no model {name!r}{nearest(name, BUILT_IN)}; or name one of torchvision's, such as "
        "torchvision:resnet18, or your own as package.module:Class"
    )


def _own(name: str, folder: str | None) -> Callable[..., nn.Module]:
    path, _, attribute = name.partition(":")
    make_torchvision_importable()
    try:
        module = own_module(path, folder)
    except ConfigError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    maker = getattr(module, attribute, None)
    if maker is None:
        found = [key for key, value in vars(module).items() if _is_module_class(value)]
        raise ModelError(f"{path} has no {attribute!r}{nearest(attribute, found)}")
    if not _is_module_class(maker):
        raise ModelError(f"{name} is not a class of torch.nn.Module")
    chosen: Callable[..., nn.Module] = maker
    return chosen


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _check_options(name: str, maker: Callable[..., nn.Module], options: Mapping[str, object]) -> None:
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    fixed = maker.keywords if isinstance(maker, partial) else {}
    known = [key for key in parameters if key not in fixed]
    for key in options:
        if key not in known:
            raise ModelError(f"{name} has no option {key!r}{nearest(key, known)}")
