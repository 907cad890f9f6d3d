"""What runs in an actor of Ray: trains the visits that it is sent, one after another. It needs no Ray itself."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fleet_sim.engines.engine import Shards
from fleet_sim.engines.frames import Order, answer_of
from fleet_sim.engines.visit_trainer import Station
from sojourn import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray


def versions() -> dict[str, str]:
    """What must be the same on all machines, or a visit's numbers would depend on where it ran."""
    return {"sojourn": __version__, **{name: version(name) for name in ("onnxruntime", "numpy")}}


class RayStation:
    """A station with what it holds from earlier orders. The arrays lie in its machine's object store."""

    def __init__(self, data: tuple[NDArray[Any], NDArray[np.int64]], classes: tuple[str, ...]) -> None:
        self._x, self._y = data
        self._classes = classes
        self._station = Station()
        self._orders = msgspec.msgpack.Decoder(Order)
        self._held: dict[bytes, bytes] = {}

    def about(self) -> tuple[str, dict[str, str]]:
        """The machine's name, and the versions that are installed on it."""
        return platform.node(), versions()

    def train(self, order: bytes, fresh: tuple[bytes, ...], *blobs: bytes) -> bytes:
        """An order, and the blobs with these digests that it needs and that are not held yet."""
        told = self._orders.decode(order)
        for digest in told.forget:
            del self._held[digest]
        self._held |= dict(zip(fresh, blobs, strict=True))
        shards = Shards(self._x, self._y, self._classes, {told.device: np.frombuffer(told.rows, np.int64)})
        needed = {digest: self._held[digest] for digest in told.needs}
        outcome = self._station.train(shards, told.device, told.key, told.work, needed, self._held.__getitem__)
        return msgspec.msgpack.encode(answer_of(outcome))
