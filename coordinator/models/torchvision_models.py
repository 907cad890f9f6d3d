"""torchvision's classifiers by name, `torchvision:resnet18`: with as many outputs as the job has classes."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coordinator.models.nearest import nearest
from coordinator.models.torchvision_import import make_torchvision_importable
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from sojourn.protocol.spec import InputSpec

PREFIX = "torchvision:"
COLOURS = 3
GIVEN = {
    "weights": "weights are not downloaded: name a file of them in model.start",
    "weights_backbone": "weights are not downloaded: name a file of them in model.start",
    "num_classes": "it is the number of the job's classes",
    "progress": "nothing is downloaded",
    "image_size": "it is that of data.input",
}
"""Options of torchvision's that a job cannot set, and why."""


def torchvision_maker(name: str, input: InputSpec, classes: int) -> Callable[..., nn.Module]:  # noqa: A002
    """What makes the model that torchvision calls `name`, with random weights, for images of the job's size.

    A grey image is given to it three times, as one in colour: so weights that were trained on photographs fit.
    """
    builder = _builder(name)
    channels, height, width = _image(name, input)
    fitted: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name.startswith("vit_"):
        if height != width:
            raise ModelError(f"{PREFIX}{name} takes square images, not {height} x {width}: set data.input")
        fitted["image_size"] = height

    def make(**options: Any) -> nn.Module:
        for key, why in GIVEN.items():
            if key in options:
                raise ModelError(f"{PREFIX}{name} takes no option {key!r} here: {why}")
        model = builder(**fitted, **options)
        if channels != COLOURS:
            model.register_forward_pre_hook(_in_three_channels)
        return model

    return make


def _image(name: str, input: InputSpec) -> tuple[int, int, int]:  # noqa: A002
    if len(input.shape) != COLOURS or input.shape[0] not in (1, COLOURS) or input.dtype != "float32":
        raise ModelError(
            f"{PREFIX}{name} takes images with 1 or 3 channels, and a sample here is {input.dtype} of shape "
            f"{list(input.shape)}: set data.input, such as [3, 64, 64], or take another model"
        )
    channels, height, width = input.shape
    return channels, height, width


def _in_three_channels(_module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
    (x,) = arguments
    return (x.expand(-1, COLOURS, -1, -1),)


def _builder(name: str) -> Callable[..., nn.Module]:
    if find_spec("torchvision") is None:
        raise ModelError(
            f"{PREFIX}{name} needs torchvision, which is not installed on this machine: "
            "pip install torchvision, beside the torch that is there"
        )
    make_torchvision_importable()
    models = import_module("torchvision.models")
    known: list[str] = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"torchvision has no classifier {name!r}{nearest(name, known)}")
    builder: Callable[..., nn.Module] = models.get_model_builder(name)
    return builder
