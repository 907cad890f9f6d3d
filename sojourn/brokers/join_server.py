"""The door of a fleet: a small TLS server where devices join and members renew their certificates.

It is public: connections are limited in time, in bytes, to one request each, per address, and in total.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.brokers import configuration
from sojourn.brokers.fleet import BROKER, CA_FILE, locked
from sojourn.brokers.join_answers import PresentedCertificate, handle_request
from sojourn.errors import InvalidMessage, SojournError
from sojourn.joining.messages import LENGTH_BYTES, Answer, Rejected, framed, length_of, read_request
from sojourn.rate_limiter import Rate, RateLimiter
from sojourn.text import clean

log = logging.getLogger(__name__)
SECONDS = 10.0
"""Maximum seconds of a connection."""
CONNECTIONS = 64
CONNECTIONS_OF_ADDRESS = 16
"""Maximum concurrent connections of one address, which a school's devices may share."""
RATE = Rate(50.0, 500.0)
"""The rate limit of connections of one address."""
ADDRESSES = 4_096
"""Maximum addresses with a rate limit; the least recent one is dropped."""
_WATCH_SECONDS = 2.0
_BACKLOG = 128


@dataclass
class JoinServer:
    """The running door of a fleet folder; `wall` is the clock for certificates."""

    folder: Path
    host: str
    port: int
    reload: Callable[[], bool]
    wall: Callable[[], float] = time.time
    _rate_limiter: RateLimiter = field(default_factory=lambda: RateLimiter(ADDRESSES))
    _open: Counter[str] = field(default_factory=Counter)
    _refused: int = 0
    _server: asyncio.Server | None = None
    _work: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "door"))

    async def serve(self) -> None:
        """Serve until cancelled; restart when the certificates change."""
        try:
            while True:
                known = _file_times(self.folder)
                await self._listen()
                while _file_times(self.folder) == known:  # noqa: ASYNC110  # files have no event to wait for
                    await asyncio.sleep(_WATCH_SECONDS)
                log.info("the certificates have changed: restarting")
                await self.close()
        finally:
            await self.close()
            self._work.shutdown()

    async def _listen(self) -> None:
        # Under the lock: while a command replaces the files, certificate and key may not match.
        context = await asyncio.get_running_loop().run_in_executor(self._work, _locked_context, self.folder)
        self._server = await asyncio.start_server(
            self._serve_client,
            self.host,
            self.port,
            ssl=context,
            ssl_handshake_timeout=SECONDS,
            backlog=_BACKLOG,
            limit=1 << 16,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("the door is listening on port %d", self.port)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")  # None if the client has disconnected
        address = client_network(peer[0]) if peer else ""
        crowded = self._open.total() >= CONNECTIONS or self._open[address] >= CONNECTIONS_OF_ADDRESS
        if crowded or not self._rate_limiter.allows(address, RATE, time.monotonic()):
            self._log_refused()
            writer.transport.abort()
            return
        self._open[address] += 1
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._handle(reader, writer)
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

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        try:
            length = length_of(await reader.readexactly(LENGTH_BYTES))
            request = read_request(await reader.readexactly(length))
        except InvalidMessage as error:
            return Rejected(str(error)[:200])
        presented = _presented_certificate(writer.get_extra_info("peercert"))
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._work, handle_request, self.folder, request, presented, self.wall())
        except SojournError as error:
            log.warning("cannot handle a request: %s", error)
            return Rejected("the door has an internal error: try again later", final=False)
        if found.note:
            log.info("%s", clean(found.note))
        if found.reload:
            await loop.run_in_executor(self._work, self.reload)
        return found.answer

    def _log_refused(self) -> None:
        """Log refused connections, at exponentially growing intervals."""
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            log.warning("%d connections were refused: too many at once, or too often", self._refused)


def client_network(address: str) -> str:
    """Return the key for counting connections: the address, or its IPv6 /64 network, which one host can own."""
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
    """Return the TLS context: it presents the broker's certificate and accepts optional certificates of the fleet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / BROKER / configuration.CERTIFICATE, folder / BROKER / configuration.KEY)
    context.load_verify_locations(folder / CA_FILE)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _locked_context(folder: Path) -> ssl.SSLContext:
    with locked(folder):
        return server_context(folder)


def _file_times(folder: Path) -> tuple[int, ...]:
    files = (folder / CA_FILE, folder / BROKER / configuration.CERTIFICATE, folder / BROKER / configuration.KEY)
    return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)


def _presented_certificate(certificate: dict[str, object] | None) -> PresentedCertificate | None:
    """Return the client certificate that TLS verified, or None."""
    if not certificate:
        return None
    names = _name_of(certificate.get("subject")), _name_of(certificate.get("issuer"))
    until = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    return PresentedCertificate(names[0], str(certificate["serialNumber"]).lower().lstrip("0"), names[1], float(until))


def _name_of(parts: object) -> str:
    pairs = [pair for part in parts for pair in part] if isinstance(parts, tuple) else []
    return next((str(value) for key, value in pairs if key == "commonName"), "")
