"""What a worker does, in whatever process it runs: it trains the visits that it is sent, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fleet_sim.engines.engine import Shards
from fleet_sim.engines.frames import VisitRequest, answer_of
from fleet_sim.engines.visit_trainer import VisitTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_requests = msgspec.msgpack.Decoder(VisitRequest)


class RequestTrainer:
    """A visit trainer that keeps the data set, and blobs from earlier requests until a request says to forget them."""

    def __init__(self, x: NDArray[Any], y: NDArray[np.int64], classes: tuple[str, ...]) -> None:
        self._x, self._y, self._classes = x, y, classes
        self._trainer = VisitTrainer()
        self._held: dict[bytes, bytes] = {}

    def train(self, packed: bytes, fresh: Mapping[bytes, bytes] | None = None) -> bytes:
        """The packed answer to a packed request; `fresh` are blobs that came beside it."""
        request = _requests.decode(packed)
        for digest in request.forget:
            del self._held[digest]
        self._held |= {**request.blobs, **(fresh or {})}
        shards = Shards(self._x, self._y, self._classes, {request.device: np.frombuffer(request.rows, np.int64)})
        needed = {digest: self._held[digest] for digest in request.needs}
        outcome = self._trainer.train(shards, request.device, request.key, request.work, needed, self._held.__getitem__)
        return msgspec.msgpack.encode(answer_of(outcome))
