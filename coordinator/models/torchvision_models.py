"""torchvision next to any torch, and its classifiers by name: `torchvision:resnet18`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.errors import ModelError
from sojourn.protocol.spec import InputSpec
from sojourn.settings import nearest

if TYPE_CHECKING:
    from torch import Tensor, nn


# Importing torchvision next to any torch.
#
# PyPI's torchvision for x86 Linux is built for a torch with CUDA. Next to a torch without it, its compiled operators
# cannot be loaded. torchvision tolerates that until it registers two of them with torch: `import torchvision` then
# fails with "operator torchvision::nms does not exist". Data sets and models use neither, so declaring both is enough.

_DECLARED = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def make_torchvision_importable() -> None:
    """Make `import torchvision` work in this process, if it is installed."""
    spec = find_spec("torchvision")
    if spec is not None and spec.origin and not _compiled(Path(spec.origin).parent):
        _declared()


def torchvision_datasets() -> Any:
    """Return the module torchvision.datasets."""
    make_torchvision_importable()
    return import_module("torchvision.datasets")


@cache
def _compiled(package: Path) -> bool:
    """Whether torchvision's compiled operators fit this torch; loading them again later is harmless."""
    import torch  # noqa: PLC0415  # takes seconds: only if torchvision is used

    for library in package.glob("_C.*"):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            continue
        return True
    return False


@cache  # also keeps the library object, on which the declarations depend
def _declared() -> Any:
    import torch  # noqa: PLC0415  # see above

    declarations = torch.library.Library("torchvision", "FRAGMENT")
    for name in _DECLARED:
        declarations.define(name + _SCHEMA)
    return declarations


PREFIX = "torchvision:"
COLOURS = 3
RESERVED_OPTIONS = {
    "weights": "weights are not downloaded: set their file in model.start",
    "weights_backbone": "weights are not downloaded: set their file in model.start",
    "num_classes": "it is the job's number of classes",
    "progress": "nothing is downloaded",
    "image_size": "it is that of data.input",
}
"""torchvision's options that a job cannot set, with the reason."""


def torchvision_maker(name: str, input: InputSpec, classes: int) -> Callable[..., nn.Module]:  # noqa: A002
    """Return a function that makes torchvision's model `name` with random weights, for images of the job's size.

    A grey image is repeated for three channels, so that weights that were trained on photographs fit.
    """
    builder = _builder(name)
    channels, height, width = _image(name, input)
    fitted: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name.startswith("vit_"):
        if height != width:
            raise ModelError(f"{PREFIX}{name} takes square images, not {height} x {width}: set data.input")
        fitted["image_size"] = height

    def make(**options: Any) -> nn.Module:
        for key, reason in RESERVED_OPTIONS.items():
            if key in options:
                raise ModelError(f"{PREFIX}{name} takes no option {key!r} here: {reason}")
        model = builder(**fitted, **options)
        if channels != COLOURS:
            model.register_forward_pre_hook(_in_three_channels)
        return model

    return make


def _image(name: str, input: InputSpec) -> tuple[int, int, int]:  # noqa: A002
    if len(input.shape) != COLOURS or input.shape[0] not in (1, COLOURS) or input.dtype != "float32":
        raise ModelError(
            f"{PREFIX}{name} takes images with 1 or 3 channels, and a sample here is {input.dtype} of shape "
            f"{list(input.shape)}: set data.input, such as [3, 64, 64], or choose another model"
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
            "pip install torchvision, next to the installed torch"
        )
    make_torchvision_importable()
    models = import_module("torchvision.models")
    known: list[str] = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"torchvision has no classifier {name!r}; {nearest(name, known)}")
    builder: Callable[..., nn.Module] = models.get_model_builder(name)
    return builder
