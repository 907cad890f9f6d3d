"""HTTP for programs on this machine: on 127.0.0.1 alone, a few connections at once, none of them for ever.

Pages of other sites that a browser on this machine shows get no answer: by `Host`, so that a name that is made to lead
here does not help, and by `Origin`.
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

AT_ONCE = 8
"""Connections that are served at the same time; others are turned away."""
_SILENCE, _LONGEST = 10.0, 30.0
"""Seconds that a client may be silent, and that a request may take in all."""
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?\Z", re.IGNORECASE)
log = logging.getLogger(__name__)


class LocalServer(ThreadingHTTPServer):
    """As many connections as are allowed, each on a thread and for a while."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, conversation: type[LocalConversation]) -> None:
        super().__init__(("127.0.0.1", port), conversation)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}

    def server_bind(self) -> None:
        """Take the port; the library would look up this machine's name besides, which may take long without a line."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  # the signature is the library's
        """Whether there is room for one more."""
        with self._lock:
            room = len(self._open) < AT_ONCE
            if room:
                self._open[request] = monotonic() + _LONGEST
        if not room:
            request.settimeout(1.0)
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        return room

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long, twice a second."""
        now = monotonic()
        with self._lock:
            late = [request for request, end in self._open.items() if end < now]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                log.debug("a connection that took too long has just ended: %s", error)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the signature is the library's
        """A client that hangs up is no news; anything else is."""
        if not isinstance(sys.exception(), OSError):
            log.error("a request failed", exc_info=True)  # noqa: LOG014  # the library calls this in its handler


class LocalConversation(BaseHTTPRequestHandler):
    """One request and its answer."""

    timeout = _SILENCE
    server_version, sys_version = "sojourn", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the signature is the library's
        """Requests are not logged one by one."""

    def why_refused(self) -> str | None:
        """Why this sender gets no answer: only programs of this machine do, and pages that it serves itself."""
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not _LOCAL.match(hosts[0]):
            return "ask for localhost or 127.0.0.1"
        origin = self.headers.get("Origin")
        if origin is not None and not _LOCAL.match(origin.partition("://")[2]):
            return "pages of other sites may not ask"
        return None

    def send(self, status: int, kind: str, body: bytes) -> None:
        """The whole answer, of a kind that no browser takes for another; it ends the conversation."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
