"""Predictions over HTTP for programs on this machine: `python -m edge_agent.inference.endpoint <Endpoint as JSON>`.

Off unless the owner switches it on, and on 127.0.0.1 alone. It answers no page of another site that a browser on this
machine shows (by `Host` and `Origin`), and ends when the agent that started it is gone.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge_agent.inference.endpoint_process import Endpoint
from edge_agent.inference.http_api import PredictionApi, RefusedRequest
from edge_agent.inference.reporters import ErrorToken
from sojourn import logs
from sojourn.errors import ConfigError, DataError, NoRelease, SojournError
from sojourn.local_http import LocalConversation, LocalServer

LARGEST = 4 << 20
"""Bytes of a request's body."""
_DRAINED = 64 << 20
_PATH = re.compile(r"/(?P<line>[a-z0-9-]{1,63})(/(?P<what>predict|error))?\Z")
log = logging.getLogger(__name__)


class Server(LocalServer):
    """Answers predictions, on a thread for each connection."""

    def __init__(self, store: Path, port: int, token: ErrorToken | None = None) -> None:
        super().__init__(port, Conversation)
        self.api = PredictionApi(store, token)


class Conversation(LocalConversation):
    """One request and its answer."""

    server: Server
    taken = False
    """Whether the body was read."""

    def do_GET(self) -> None:  # noqa: N802  # the library looks for this name
        """Tell what is served."""
        self._answer(self._describe)

    def do_POST(self) -> None:  # noqa: N802  # the library looks for this name
        """Predict, or take note of an error."""
        self._answer(self._perform)

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
        if why := self.why_refused():
            raise RefusedRequest(HTTPStatus.FORBIDDEN, why)

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
        self.send(status, "application/json", msgspec.json.encode(answer))


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
