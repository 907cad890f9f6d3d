"""The code of a Ray actor, which trains the visits it receives; it does not import Ray."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fleet_sim.engines.engine import Shards
from fleet_sim.engines.serial import VisitTrainer
from fleet_sim.engines.worker_messages import VisitRequest, answer_of
from sojourn import __version__

_requests = msgspec.msgpack.Decoder(VisitRequest)


def versions() -> dict[str, str]:
    """Return the versions that must match on all machines, because results depend on them."""
    return {"sojourn": __version__, **{name: version(name) for name in ("onnxruntime", "numpy")}}


class RayVisitTrainer:
    """A visit trainer as an actor; it keeps the data set, and blobs of earlier requests until a request drops them.

    Arrays and blobs are in its machine's object store.
    """

    def __init__(self, data: tuple[NDArray[Any], NDArray[np.int64]], classes: tuple[str, ...]) -> None:
        self._data, self._classes = data, classes
        self._trainer = VisitTrainer()
        self._held: dict[bytes, bytes] = {}

    def about(self) -> tuple[str, dict[str, str]]:
        """Return the machine's name and its installed versions."""
        return platform.node(), versions()

    def train(self, packed: bytes, digests: tuple[bytes, ...], *blobs: bytes) -> bytes:
        """Return the packed reply to a packed request; `blobs` are the missing blobs with their digests."""
        request = _requests.decode(packed)
        for digest in request.forget:
            del self._held[digest]
        self._held |= zip(digests, blobs, strict=True)
        shards = Shards(*self._data, self._classes, {request.device: np.frombuffer(request.rows, np.int64)})
        needed = {digest: self._held[digest] for digest in request.needs}
        outcome = self._trainer.train(shards, request.device, request.key, request.work, needed, self._held.__getitem__)
        return msgspec.msgpack.encode(answer_of(outcome))
