"""Build a model by its name: an MLP, a CNN, ResNet-8, a GRU, an autoencoder, torchvision's, or a custom one."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.models.torchvision_models import PREFIX, make_torchvision_importable, torchvision_maker
from sojourn.errors import ConfigError, ModelError
from sojourn.parts.custom_code import own_module
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Shape
from sojourn.settings import nearest


def mlp(input: InputSpec, classes: int, hidden: Sequence[int] = (64,), dropout: float = 0.0) -> nn.Module:  # noqa: A002
    """Return hidden layers with ReLU, each followed by dropout if it is set."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inward, outward in pairwise([prod(input.shape), *hidden]):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear([prod(input.shape), *hidden][-1], classes))


IMAGE_AXES = 3


def cnn(
    input: InputSpec,  # noqa: A002
    classes: int,
    channels: Sequence[int] = (16, 32),
    hidden: int = 64,
    dropout: float = 0.0,
) -> nn.Module:
    """Return one 3x3 convolution and one 2x2 pooling per entry of `channels`, then `hidden` units."""
    if len(input.shape) != IMAGE_AXES:
        raise ValueError(f"cnn takes images (channels, height, width), not {input.shape}")
    first, height, width = input.shape
    shrink = 2 ** len(channels)
    if height < shrink or width < shrink:
        raise ValueError(f"{height}x{width} is too small for {len(channels)} poolings")
    layers: list[nn.Module] = []
    for inward, outward in pairwise([first, *channels]):
        # Pooling first: the result is the same as after ReLU, which then processes a quarter of the values.
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    flat = [first, *channels][-1] * (height // shrink) * (width // shrink)
    layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inward: int, outward: int, stride: int, groups: int) -> None:
        """Map `inward` to `outward` channels."""
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outward)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outward)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride=stride, bias=False), nn.GroupNorm(groups, outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual sum."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet8(nn.Module):
    """A stem, three blocks of `width`, 2 `width` and 4 `width` channels, and the mean over the image."""

    def __init__(self, channels: int, classes: int, width: int, groups: int) -> None:
        """Create the model for images of `channels`."""
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        widths = [width, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(*(ResidualBlock(a, b, 1 if a == b else 2, groups) for a, b in pairwise(widths)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        features = self.blocks(functional.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits


def resnet8(input: InputSpec, classes: int, width: int = 16, groups: int = 8) -> nn.Module:  # noqa: A002
    """Return ResNet-8 for images of any size."""
    if len(input.shape) != IMAGE_AXES:
        raise ValueError(f"resnet8 takes images (channels, height, width), not {input.shape}")
    return ResNet8(input.shape[0], classes, width, groups)


SERIES_AXES = 2


class Gru(nn.Module):
    """A GRU, with a linear layer after its last step, or after each step if each step has an output."""

    def __init__(self, first: nn.Module, width: int, hidden: int, layers: int, outputs: int, *, each: bool) -> None:
        super().__init__()
        self.first = first
        self.gru = nn.GRU(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)
        self._each = each

    def forward(self, x: Tensor) -> Tensor:
        """Return a row for each sample, or for each of its steps."""
        steps, _ = self.gru(self.first(x))
        found: Tensor = self.head(steps if self._each else steps[:, -1])
        return found


def gru(
    input: InputSpec,  # noqa: A002
    output: Shape,
    hidden: int = 32,
    layers: int = 1,
    vocabulary: int = 0,
) -> nn.Module:
    """Return `layers` layers of `hidden` units. `vocabulary`: the number of tokens, if the outputs are not tokens."""
    if input.dtype == "int64":
        if len(input.shape) != 1:
            raise ValueError(f"gru takes sequences of tokens, not {input.shape}")
        tokens = len(output) == SERIES_AXES
        size = output[-1] if tokens else vocabulary
        if not size:
            raise ValueError("gru needs the number of tokens: set vocabulary")
        return Gru(nn.Embedding(size, hidden), hidden, hidden, layers, output[-1], each=tokens)
    if len(input.shape) != SERIES_AXES:
        raise ValueError(f"gru takes windows (steps, channels), not {input.shape}: set data.input")
    return Gru(nn.Identity(), input.shape[1], hidden, layers, prod(output), each=False)


def autoencoder(
    input: InputSpec,  # noqa: A002
    classes: int,
    hidden: Sequence[int] = (32, 8),
    dropout: float = 0.0,
) -> nn.Module:
    """Return layers of these sizes down to the last one, the bottleneck, and back, with ReLU between them."""
    if not hidden:
        raise ValueError("hidden must contain at least the size of the bottleneck")
    sizes = [prod(input.shape), *hidden, *reversed(hidden[:-1])]
    layers: list[nn.Module] = [nn.Flatten()]
    for inward, outward in pairwise(sizes):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


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
    """Build the model `name` with weights drawn from `seed`; torch's random state does not change.

    classes: the number of its outputs for a sample, or their shape. path: a further folder that is searched for a
    custom class.
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
        raise ModelError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    return model if ":" in name and not name.startswith(PREFIX) else _in_shape(model, output, input)


def _in_shape(model: nn.Module, output: Shape, input: InputSpec) -> nn.Module:  # noqa: A002
    """Reshape the model's row of outputs to the shape of the targets."""
    if len(output) == 1 or (isinstance(model, Gru) and input.dtype == "int64"):
        return model
    if isinstance(model, nn.Sequential):  # keeps the names of its tensors
        return model.append(nn.Unflatten(1, output))
    return nn.Sequential(OrderedDict(model=model, shaped=nn.Unflatten(1, output)))


def _maker(name: str, input: InputSpec, output: Shape, path: str | None) -> Callable[..., nn.Module]:  # noqa: A002
    """Return a function that makes the model from its options."""
    if name == "gru":
        return partial(gru, input=input, output=output)
    if name in BUILT_IN:
        return partial(BUILT_IN[name], input=input, classes=prod(output))
    if name.startswith(PREFIX):
        return torchvision_maker(name.removeprefix(PREFIX), input, prod(output))
    if ":" in name:
        return _custom(name, path)
    raise ModelError(
        f"there is no model {name!r}; {nearest(name, BUILT_IN)}; or set one of torchvision's, such as "
        "torchvision:resnet18, or a custom one as package.module:Class"
    )


def _custom(name: str, folder: str | None) -> Callable[..., nn.Module]:
    path, _, attribute = name.partition(":")
    make_torchvision_importable()
    try:
        module = own_module(path, folder)
    except ConfigError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    maker = getattr(module, attribute, None)
    if maker is None:
        found = [key for key, value in vars(module).items() if _is_module_class(value)]
        raise ModelError(f"{path} has no {attribute!r}; {nearest(attribute, found)}")
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
            raise ModelError(f"{name} has no option {key!r}; {nearest(key, known)}")
