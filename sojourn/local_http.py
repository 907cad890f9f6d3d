"""HTTP for programs on this machine: only on 127.0.0.1, with limits on connections and their duration.

Requests from pages of other sites in a local browser are rejected by `Origin`, and by `Host` against DNS rebinding.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic
from typing import Any

from sojourn.loopback import is_loopback

MAX_CONNECTIONS = 8
"""Maximum concurrent connections; others get status 503."""
_IDLE_TIMEOUT, _REQUEST_TIMEOUT = 10.0, 30.0
"""Maximum seconds without data from a client, and for a whole request."""
_HOST = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::\d{1,5})?\Z")
log = logging.getLogger(__name__)


class LocalServer(ThreadingHTTPServer):
    """A server with a limited number of connections, each on a thread and for a limited time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, handler: type[LocalRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}

    def server_bind(self) -> None:
        """Bind the port, without the library's lookup of the host name, which may take long without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  # the signature is the library's
        """Accept a connection if the limit is not reached."""
        with self._lock:
            room = len(self._open) < MAX_CONNECTIONS
            if room:
                self._open[request] = monotonic() + _REQUEST_TIMEOUT
        if not room:
            request.settimeout(1.0)
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        return room

    def shutdown_request(self, request: Any) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that take too long; called twice a second."""
        now = monotonic()
        with self._lock:
            late = [request for request, end in self._open.items() if end < now]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                log.debug("a slow connection ended before it was closed: %s", error)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the signature is the library's
        """Log errors, except closed connections."""
        if not isinstance(sys.exception(), OSError):
            log.error("a request failed", exc_info=True)  # noqa: LOG014  # the library calls this in its handler


class LocalRequestHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    timeout = _IDLE_TIMEOUT
    server_version, sys_version = "sojourn", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the signature is the library's
        """Do not log requests."""

    def rejection_reason(self) -> str | None:
        """Return why a request is rejected, or None for programs and pages of this machine."""
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not _is_local(hosts[0]):
            return "use the host localhost or 127.0.0.1"
        origin = self.headers.get("Origin")
        if origin is not None and not _is_local(origin.partition("://")[2]):
            return "requests from pages of other sites are not allowed"
        return None

    def send(self, status: int, kind: str, body: bytes) -> None:
        """Send the whole response, without content sniffing by browsers, and close the connection."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _is_local(address: str) -> bool:
    """Return whether a host, with or without a port, is this machine."""
    found = _HOST.match(address)
    return found is not None and is_loopback(found["six"] or found["name"] or "")
