"""Predictions over HTTP for programs on this machine: `EndpointProcess` starts this module."""

from __future__ import annotations

import logging
import re
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.endpoint_process import SETTINGS
from edge_agent.inference.inputs_and_outputs import of_csv, of_image, of_npy, rows_of
from edge_agent.inference.model import Model
from edge_agent.inference.usage import ErrorToken
from edge_agent.releases.folder import ReleaseFolder, lines
from edge_agent.releases.served import card_of
from sojourn import logs
from sojourn.data.source import Form
from sojourn.errors import ConfigError, DataError, ModelError, NoRelease, SojournError
from sojourn.local_http import LocalRequestHandler, LocalServer
from sojourn.processes import Parent

MAX_ROWS = 1024


class RefusedRequest(Exception):
    """A refused request, with its status."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class PredictRequest(msgspec.Struct, frozen=True):
    """The JSON body of a prediction request."""

    x: list[Any] | dict[str, Any]


class PredictionApi:
    """Performs requests with the releases of a store; a line is loaded at its first request."""

    def __init__(self, store: Path, token: ErrorToken | None = None) -> None:
        """Serve a store's releases; requests with the token may report errors."""
        self._store, self._token = store, token or ErrorToken()
        self._models: dict[str, Model] = {}
        self._loading = threading.Lock()
        self._reading = threading.Lock()
        """Held while a body is decoded: JSON takes ten times its size, so only one body is decoded at a time."""

    def lines(self) -> dict[str, Any]:
        """List the served lines with their versions, tasks and classes."""
        found = []
        for line in lines(self._store):
            folder = ReleaseFolder(self._store, line)
            served = folder.current()
            if served is None:
                continue
            try:
                card = card_of(folder.read(served)[1], served)
            except SojournError as error:
                found.append({"line": line, "version": served.version, "error": str(error)})
            else:
                task = {"task": card.task.kind} if card.task else {}
                found.append({"line": line, "version": served.version, **task, "classes": card.classes})
        return {"lines": found}

    def card(self, line: str) -> dict[str, Any]:
        """Return the card of the served version, without its probe."""
        model = self._model(line)
        card: dict[str, Any] = msgspec.to_builtins(model.card)
        del card["probe"]
        return card | ({"threshold": model.threshold} if model.card.anomaly else {})

    def predict(self, line: str, kind: str, body: bytes, authorization: str | None = None) -> dict[str, Any]:
        """Return the version and, for each row, the class and all probabilities; for other tasks, `answers`.

        A failure of the release counts as an error only if the request shows the token, because anyone can craft rows
        that fail.
        """
        model = self._model(line)
        with self._reading:
            rows = _rows(kind, body, model.card)
        if len(rows) > MAX_ROWS:
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have at most {MAX_ROWS} rows")
        try:
            return {"line": line, **_answered(model, rows)}
        except ModelError as error:
            if self._token.shown_in(authorization):
                model.report_error(str(error))
            raise

    def note_error(self, line: str, text: str, authorization: str | None = None) -> dict[str, Any]:
        """Report a wrong prediction to the agent."""
        if not self._token:
            raise RefusedRequest(
                HTTPStatus.FORBIDDEN, "error reports are disabled: the owner must set error_token_file"
            )
        if not self._token.shown_in(authorization):
            raise RefusedRequest(
                HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: send Authorization: Bearer TOKEN"
            )
        model = self._model(line)
        model.report_error(text)
        return {"line": line, "version": model.version, "noted": True}

    def _model(self, line: str) -> Model:
        with self._loading:
            model = self._models.get(line)
            if model is None:
                model = self._models[line] = Model(line, self._store, count_failures=False)
        try:
            model.version  # noqa: B018  # raises NoRelease if the line was withdrawn
        except NoRelease:
            with self._loading:
                self._models.pop(line, None)
            model.close()
            raise
        return model


def _answered(model: Model, rows: NDArray[np.generic]) -> dict[str, Any]:
    kind = model.card.learns.kind
    if kind != "classification":
        version, answers, _ = model.answers_of_version(rows)
        return {"version": version, "task": kind, "answers": answers}
    version, classes, shares = model.probabilities(rows)
    likeliest = [classes[int(each)] for each in shares.argmax(axis=1)]
    return {"version": version, "classes": likeliest, "probabilities": shares.round(6).tolist()}


def _rows(kind: str, body: bytes, form: Form) -> NDArray[np.generic]:
    match kind:
        case "application/json":
            return rows_of(_of_json(body), form, "the model")[0]
        case "application/x-npy":
            return rows_of(of_npy(body, "the body"), form, "the model")[0]
        case "text/csv":
            return of_csv(body, form)
        case "image/png" | "image/jpeg":
            return of_image(body, form)
        case _:
            raise RefusedRequest(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"unknown type {kind!r}: use application/json, application/x-npy, text/csv, image/png or image/jpeg",
            )


def _of_json(body: bytes) -> NDArray[np.generic] | list[Any] | dict[str, Any]:
    """Decode the numbers of a JSON request, or its rows by column name."""
    try:
        given = msgspec.json.decode(body, type=PredictRequest).x
        if isinstance(given, dict) or any(isinstance(each, dict) for each in given):
            return given
        x = np.asarray(given)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f'the body is not {{"x": [numbers]}}: {error}') from error
    if x.dtype.kind not in "buif":
        raise DataError('the body is not {"x": [numbers]} with rows of equal length')
    return x


# The endpoint runs only if the owner sets a port, and only on 127.0.0.1. It refuses requests from web pages of other
# sites (by `Host` and `Origin`), and ends when its agent ends.

MAX_BODY = 4 << 20
"""Maximum bytes of a request's body."""
_MAX_DRAIN = 64 << 20
_PATH = re.compile(r"/(?P<line>[a-z0-9-]{1,63})(/(?P<what>predict|error))?\Z")
log = logging.getLogger(__name__)


class Server(LocalServer):
    """An HTTP server for predictions, with a thread for each connection."""

    def __init__(self, store: Path, port: int, token: ErrorToken | None = None) -> None:
        super().__init__(port, Conversation)
        self.api = PredictionApi(store, token)


class Conversation(LocalRequestHandler):
    """One request and its response."""

    server: Server
    taken = False
    """Whether the body was read."""

    def do_GET(self) -> None:  # noqa: N802  # the library looks for this name
        """Describe the served lines, or one line."""
        self._answer(self._describe)

    def do_POST(self) -> None:  # noqa: N802  # the library looks for this name
        """Predict, or record an error."""
        self._answer(self._perform)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of the HTTP library as JSON."""
        self._send(code, {"error": message or explain or HTTPStatus(code).phrase})

    def _answer(self, find: Any) -> None:
        try:
            if why := self.rejection_reason():
                raise RefusedRequest(HTTPStatus.FORBIDDEN, why)
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
            raise RefusedRequest(
                HTTPStatus.NOT_FOUND, "not found: the paths are /, /LINE, /LINE/predict and /LINE/error"
            )
        return found["line"], found["what"]

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,12}", length, re.ASCII):
            raise RefusedRequest(HTTPStatus.LENGTH_REQUIRED, "the header Content-Length is missing")
        if int(length) > MAX_BODY:
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have at most {MAX_BODY >> 20} MB")
        self.taken = True
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the body is incomplete")
        return body

    def _drain(self) -> None:
        """Read and discard the body: closing the connection before that could discard the response."""
        length = self.headers.get("Content-Length", "")
        left = min(int(length), _MAX_DRAIN) if length.isdecimal() and len(length) < 13 and not self.taken else 0
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _send(self, status: int, answer: Any) -> None:
        self.send(status, "application/json", msgspec.json.encode(answer))


def main() -> int:
    """Serve until the agent ends."""
    agent = Parent(SETTINGS)
    logs.set_up_worker()
    endpoint = next(agent.frames)
    agent.exit_with_parent()
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
    sys.exit(main())
