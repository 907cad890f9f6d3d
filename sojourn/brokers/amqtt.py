"""A broker in pure Python, as a process of its own: `python -m sojourn.brokers.amqtt <host> <port>`.

It ends when its standard input does, so it never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from amqtt.broker import Broker

_PLUGINS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


async def serve(host: str, port: int) -> None:
    """Run until standard input ends."""
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": bind}}, "plugins": _PLUGINS})
    await broker.start()
    await asyncio.to_thread(sys.stdin.buffer.read)
    # What clients still hold open is not worth waiting for: this broker keeps nothing.
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
