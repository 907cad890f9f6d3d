"""Importing torchvision next to any torch.

PyPI's torchvision for x86 Linux is built for a torch with CUDA. Next to a torch without it, its compiled operators
cannot be loaded, which torchvision takes calmly, until it describes two of them to torch: `import torchvision` ends
with "operator torchvision::nms does not exist". Data sets and models use neither, so it is enough to declare the two.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_DESCRIBED = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def make_torchvision_importable() -> None:
    """From now on `import torchvision` works in this process, if it is installed: in our code and in anybody's."""
    spec = find_spec("torchvision")
    if spec is not None and spec.origin and not _compiled(Path(spec.origin).parent):
        _declared()


def torchvision_datasets() -> Any:
    """The module torchvision.datasets."""
    make_torchvision_importable()
    return import_module("torchvision.datasets")


@cache
def _compiled(package: Path) -> bool:
    """Whether torchvision's compiled operators fit this torch; loading them again later does no harm."""
    import torch  # noqa: PLC0415  # takes seconds: only where something of torchvision's is used

    for library in package.glob("_C.*"):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            continue
        return True
    return False


@cache  # which also keeps the library object: the declarations live as long as it does
def _declared() -> Any:
    import torch  # noqa: PLC0415  # see above

    declarations = torch.library.Library("torchvision", "FRAGMENT")
    for name in _DESCRIBED:
        declarations.define(name + _SCHEMA)
    return declarations
