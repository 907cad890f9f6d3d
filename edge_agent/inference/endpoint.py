"""Predictions over HTTP for programs on this machine: `python -m edge_agent.inference.endpoint <Endpoint as JSON>`.

Off unless the owner switches it on, and on 127.0.0.1 alone. It answers no page of another site that a browser on this
machine shows (by `Host` and `Origin`), and ends when the agent that started it is gone.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from edge_agent.inference.endpoint_process import Endpoint
from edge_agent.inference.http_api import PredictionApi, RefusedRequest
from edge_agent.inference.reporters import ErrorToken
from sojourn import logs
from sojourn.errors import ConfigError, DataError, NoRelease, SojournError

LARGEST = 4 << 20
"""Bytes of a request's body."""
AT_ONCE = 8
"""Connections that are served at the same time; others are turned away."""
_DRAINED = 64 << 20
_SILENCE, _LONGEST = 10.0, 30.0
"""Seconds that a client may be silent, and that a request may take in all."""
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?\Z", re.IGNORECASE)
_PATH = re.compile(r"/(?P<line>[a-z0-9-]{1,63})(/(?P<what>predict|error))?\Z")
log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """As many connections as are allowed, each on a thread and for a while."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, store: Path, port: int, token: ErrorToken | None = None) -> None:
        super().__init__(("127.0.0.1", port), Conversation)
        self.api = PredictionApi(store, token)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}

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


class Conversation(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: Server
    timeout = _SILENCE
    taken = False
    """Whether the body was read."""
    server_version, sys_version = "sojourn", ""

    def do_GET(self) -> None:
        """Tell what is served."""
        self._answer(self._describe)

    def do_POST(self) -> None:
        """Predict, or take note of an error."""
        self._answer(self._perform)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the signature is the library's
        """Requests are counted with the predictions, and not logged one by one."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself, in our form."""
        self._send(code, {"error": message or explain or HTTPStatus(code).phrase})

    def _answer(self, find: Any) -> None:
        try:
            self._check_sender()
            self._send(HTTPStatus.OK, find())
        except RefusedRequest as refusal:
            self._drain()
            self._send(refusal.status, {"error": str(refusal)})
        except NoRelease as error:
            self._send(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except DataError as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (SojournError, MemoryError) as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error) or "not enough memory"})

    def _check_sender(self) -> None:
        """Only programs of this machine, and pages that it serves itself."""
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not _LOCAL.match(hosts[0]):
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "ask for localhost or 127.0.0.1")
        origin = self.headers.get("Origin")
        if origin is not None and not _LOCAL.match(origin.partition("://")[2]):
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "pages of other sites may not ask")

    def _describe(self) -> Any:
        if self.path == "/":
            return self.server.api.lines()
        line, what = self._parts()
        if what is not None:
            raise RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"POST to {self.path}")
        return self.server.api.card(line)

    def _perform(self) -> Any:
        line, what = self._parts()
        body, kind = self._body(), (self.headers.get("Content-Type") or "application/json").partition(";")[0].strip()
        authorization = self.headers.get("Authorization")
        if what == "predict":
            return self.server.api.predict(line, kind.lower(), body, authorization)
        if what == "error":
            return self.server.api.note_error(line, body.decode(errors="replace"), authorization)
        raise RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"POST to {self.path}/predict or {self.path}/error")

    def _parts(self) -> tuple[str, str | None]:
        found = _PATH.match(self.path.partition("?")[0])
        if found is None:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, "there are /, /LINE, /LINE/predict and /LINE/error")
        return found["line"], found["what"]

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,12}", length, re.ASCII):
            raise RefusedRequest(HTTPStatus.LENGTH_REQUIRED, "say how long the body is (Content-Length)")
        if int(length) > LARGEST:
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {LARGEST >> 20} MB")
        self.taken = True
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the body was cut short")
        return body

    def _drain(self) -> None:
        """Read what is not wanted: a connection that is closed before that takes the answer with it."""
        length = self.headers.get("Content-Length", "")
        left = min(int(length), _DRAINED) if length.isdecimal() and len(length) < 13 and not self.taken else 0
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _send(self, status: int, answer: Any) -> None:
        body = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def end_with_parent() -> None:
    """The agent holds the other end of our input: when it is gone, so are we."""
    while os.read(0, 1):
        pass
    os._exit(0)


def main(settings: str) -> int:
    """Serve until the agent is gone."""
    logs.set_up_worker()
    endpoint = msgspec.json.decode(settings, type=Endpoint)
    threading.Thread(target=end_with_parent, daemon=True).start()
    np.seterr(all="ignore")
    try:
        server = Server(Path(endpoint.store), endpoint.port, ErrorToken.read(endpoint.token_file))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"127.0.0.1:{endpoint.port} cannot be used: {error.strerror}\n")
        return 1
    with server:
        log.info("predictions on http://127.0.0.1:%d/", server.server_address[1])
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
