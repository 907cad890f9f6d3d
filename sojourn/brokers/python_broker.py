"""A broker in pure Python, run by `python -m sojourn.brokers.python_broker <host> <port>`.

It exits at the end of its standard input, so that it never outlives its parent process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from amqtt.broker import Broker

_PLUGINS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


async def serve(host: str, port: int) -> None:
    """Run until the end of standard input."""
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": bind}}, "plugins": _PLUGINS})
    await broker.start()
    await asyncio.to_thread(sys.stdin.buffer.read)
    # Do not wait for open connections: this broker stores nothing.
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
