"""A process of the process pool: trains the visits that it is sent until its connection ends."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from fleet_sim.engines.frames import PoolWorkerSetup
from fleet_sim.engines.request_trainer import RequestTrainer
from fleet_sim.engines.shared import map_arrays

_setup = msgspec.msgpack.Decoder(PoolWorkerSetup)


def main(connection: int, data: int) -> None:
    """Answer requests until the other end is closed; both arguments are open files that the engine passed on."""
    requests: Connection[Any, Any] = Connection(connection)
    setup = _setup.decode(requests.recv_bytes())
    x, y = map_arrays(data, setup.layouts)
    trainer = RequestTrainer(x, y, setup.classes)
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        requests.send_bytes(trainer.train(request))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
