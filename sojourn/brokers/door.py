"""The door of a fleet: a small TLS server at which devices ask to join, and members have their certificates renewed.

Anybody can reach it. So a connection has seconds, a frame has kilobytes, one question is answered on each, an address
has so many of them, and all together are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sojourn.brokers import configuration
from sojourn.brokers.door_answers import Shown, answer_to
from sojourn.brokers.fleet import BROKER, CA_FILE, alone
from sojourn.errors import InvalidMessage, SojournError
from sojourn.joining.words import LENGTH_BYTES, Turned, framed, length_of, read_request
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sojourn.joining.words import Answer

log = logging.getLogger(__name__)
SECONDS = 10.0
"""For a connection, from its first byte to its last."""
CONNECTIONS = 64
CONNECTIONS_OF_ADDRESS = 16
"""At the same time: a school's devices are behind one address."""
PER_SECOND, AT_ONCE = 50.0, 500.0
"""Connections of one address: so many a second, after so many at once."""
ADDRESSES = 4_096
"""How many addresses are remembered; beyond that the oldest are forgotten, and begin anew."""
_WATCH_SECONDS = 2.0
_BACKLOG = 128


@dataclass
class AddressRates:
    """How often each address may come: a bucket that fills with time and empties with connections."""

    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)

    def may(self, address: str) -> bool:
        """Count one connection; False if the address has come too often."""
        now = self.clock()
        left, then = self._buckets.pop(address, (AT_ONCE, now))
        left = min(AT_ONCE, left + (now - then) * PER_SECOND)
        self._buckets[address] = (left - 1 if left >= 1 else left), now
        if len(self._buckets) > ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        return left >= 1


@dataclass
class Door:
    """The running door of a fleet's folder; `wall` is the clock that certificates go by."""

    folder: Path
    host: str
    port: int
    reload: Callable[[], bool]
    wall: Callable[[], float] = time.time
    rates: AddressRates = field(default_factory=AddressRates)
    _open: Counter[str] = field(default_factory=Counter)
    _refused: int = 0
    _server: asyncio.Server | None = None
    _work: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "door"))

    async def serve(self) -> None:
        """Answer until cancelled; with other files of the fleet's authority, under those."""
        try:
            while True:
                known = _stamps(self.folder)
                await self._listen()
                while _stamps(self.folder) == known:  # noqa: ASYNC110  # files have no event to wait for
                    await asyncio.sleep(_WATCH_SECONDS)
                log.info("the certificates have changed: the door opens anew")
                await self.close()
        finally:
            await self.close()
            self._work.shutdown()

    async def _listen(self) -> None:
        # Under the lock: while a command replaces the files, the certificate and the key do not match.
        context = await asyncio.get_running_loop().run_in_executor(self._work, _undisturbed_context, self.folder)
        self._server = await asyncio.start_server(
            self._met, self.host, self.port, ssl=context, ssl_handshake_timeout=SECONDS, backlog=_BACKLOG, limit=1 << 16
        )
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("the door is open at port %d", self.port)

    async def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")  # None for one that has gone already
        address = network_of(peer[0]) if peer else ""
        if self._open.total() >= CONNECTIONS or self._open[address] >= CONNECTIONS_OF_ADDRESS or not self.rates.may(
            address
        ):  # fmt: skip
            self._count_refused()
            writer.transport.abort()
            return
        self._open[address] += 1
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._answer(reader, writer)
                writer.write(framed(answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            writer.transport.abort()
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        try:
            length = length_of(await reader.readexactly(LENGTH_BYTES))
            request = read_request(await reader.readexactly(length))
        except InvalidMessage as error:
            return Turned(str(error)[:200])
        shown = _shown(writer.get_extra_info("peercert"))
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._work, answer_to, self.folder, request, shown, self.wall())
        except SojournError as error:
            log.warning("the door cannot answer: %s", error)
            return Turned("the door has a fault of its own: try again later", final=False)
        if found.note:
            log.info("%s", clean(found.note))
        if found.reload:
            await loop.run_in_executor(self._work, self.reload)
        return found.answer

    def _count_refused(self) -> None:
        """Say that some are not let near, but not as often as they come."""
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            log.warning("%d connections were refused: too many at once, or too often", self._refused)


def network_of(address: str) -> str:
    """Whom connections of an address count for: itself, or in IPv6 its network, of which one host has all."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False).network_address)


def server_context(folder: Path) -> ssl.SSLContext:
    """The door shows the broker's own certificate, and takes those of the fleet's authorities, if one is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / BROKER / configuration.CERTIFICATE, folder / BROKER / configuration.KEY)
    context.load_verify_locations(folder / CA_FILE)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _undisturbed_context(folder: Path) -> ssl.SSLContext:
    with alone(folder):
        return server_context(folder)


def _stamps(folder: Path) -> tuple[int, ...]:
    files = (folder / CA_FILE, folder / BROKER / configuration.CERTIFICATE, folder / BROKER / configuration.KEY)
    return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)


def _shown(certificate: dict[str, object] | None) -> Shown | None:
    """Whose certificate TLS has found good, if one was shown."""
    if not certificate:
        return None
    names = _name_of(certificate.get("subject")), _name_of(certificate.get("issuer"))
    until = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    return Shown(names[0], str(certificate["serialNumber"]).lower().lstrip("0"), names[1], float(until))


def _name_of(parts: object) -> str:
    pairs = [pair for part in parts for pair in part] if isinstance(parts, tuple) else []
    return next((str(value) for key, value in pairs if key == "commonName"), "")
