"""A process of the pool: trains the visits that it is sent, one after another, until its connection ends."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from fleet_sim.engines.engine import Shards
from fleet_sim.engines.frames import Order, Setup, answer_of
from fleet_sim.engines.shared import seen
from fleet_sim.engines.visit_trainer import Station

_setup = msgspec.msgpack.Decoder(Setup)
_order = msgspec.msgpack.Decoder(Order)


def main(connection: int, data: int) -> None:
    """Take orders until the other end is closed."""
    orders: Connection[Any, Any] = Connection(connection)
    setup = _setup.decode(orders.recv_bytes())
    x, y = seen(data, setup.layouts)
    station, held = Station(), dict[bytes, bytes]()
    while True:
        try:
            order = _order.decode(orders.recv_bytes())
        except EOFError:
            return
        for digest in order.forget:
            del held[digest]
        held |= order.blobs
        shards = Shards(x, y, setup.classes, {order.device: np.frombuffer(order.rows, np.int64)})
        needed = {digest: held[digest] for digest in order.needs}
        outcome = station.train(shards, order.device, order.key, order.work, needed, held.__getitem__)
        orders.send_bytes(msgspec.msgpack.encode(answer_of(outcome)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
