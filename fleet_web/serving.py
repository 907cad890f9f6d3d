"""Serves the pages until the process is asked to stop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

import msgspec
import typer
import uvicorn

from fleet_web.app import build
from fleet_web.security.exposure import Exposure
from fleet_web.sources.live_source import LiveSource
from fleet_web.sources.source import Sources
from sojourn.errors import ConfigError, MachineError
from sojourn.notify import Notifier

GRACE = 2
"""Seconds to notify open pages that the server is stopping; they reconnect by themselves."""


def serve(sources: Sources, live: LiveSource | None, exposure: Exposure) -> None:
    """Serve the pages, and keep the connection to the coordinator open for as long."""
    exposure.check()
    _check_certificate(exposure)
    listening = _listen(exposure)
    exposure = msgspec.structs.replace(exposure, port=listening.getsockname()[1])
    app, path = build(sources, exposure, live)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=exposure.behind_proxy,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=exposure.certificate,
        ssl_keyfile=exposure.certificate_key,
        ws_max_size=1 << 20,
    )
    notifier = Notifier.from_environment()
    if live:
        live.start()
    for line in _greeting(exposure, path):
        typer.echo(line)
    try:
        asyncio.run(_run(uvicorn.Server(config), listening, notifier))
    except KeyboardInterrupt:
        pass
    finally:
        notifier.stopping()
        if live:
            live.stop()


async def _run(server: uvicorn.Server, listening: socket.socket, notifier: Notifier) -> None:
    notifier.ready()
    alive = asyncio.create_task(_signs_of_life(notifier))
    try:
        await server.serve(sockets=[listening])
    finally:
        alive.cancel()


async def _signs_of_life(notifier: Notifier) -> None:
    while notifier.interval is not None:
        notifier.alive(time.monotonic())
        await asyncio.sleep(notifier.interval / 2)


def _listen(exposure: Exposure) -> socket.socket:
    family = socket.AF_INET6 if ":" in exposure.host else socket.AF_INET
    try:
        return socket.create_server((exposure.host, exposure.port), family=family, backlog=128)
    except OSError as error:
        raise MachineError(f"cannot listen on {exposure.host} port {exposure.port}: {error} (--port)") from error


def _check_certificate(exposure: Exposure) -> None:
    if exposure.certificate is None or exposure.certificate_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(exposure.certificate, exposure.certificate_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--certificate {exposure.certificate}, --certificate-key: {error}") from error


def _greeting(exposure: Exposure, path: str) -> list[str]:
    lines = [
        f"The fleet is at {exposure.address}{path if path != '/' else ''} (Ctrl-C stops this server, not the fleet)"
    ]
    if exposure.behind_proxy and exposure.login_file is None:
        lines.append("This server requires no login: everyone who passes the proxy can see the fleet.")
    if exposure.operate:
        lines.append("Operator actions are enabled: every logged-in user acts with this operator's name and key.")
    return lines
