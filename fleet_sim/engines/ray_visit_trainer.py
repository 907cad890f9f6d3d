"""What runs in an actor of Ray: trains the visits that it is sent. It does not import Ray itself."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fleet_sim.engines.request_trainer import RequestTrainer
from sojourn import __version__

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def versions() -> dict[str, str]:
    """What must be the same on all machines, or a visit's numbers would depend on where it ran."""
    return {"sojourn": __version__, **{name: version(name) for name in ("onnxruntime", "numpy")}}


class RayVisitTrainer:
    """A request trainer as an actor. The arrays and blobs lie in its machine's object store."""

    def __init__(self, data: tuple[NDArray[Any], NDArray[np.int64]], classes: tuple[str, ...]) -> None:
        self._trainer = RequestTrainer(*data, classes)

    def about(self) -> tuple[str, dict[str, str]]:
        """The machine's name, and the versions that are installed on it."""
        return platform.node(), versions()

    def train(self, request: bytes, digests: tuple[bytes, ...], *blobs: bytes) -> bytes:
        """The answer to a request; `blobs` are those that it needs and that are not held yet, with their digests."""
        return self._trainer.train(request, dict(zip(digests, blobs, strict=True)))
