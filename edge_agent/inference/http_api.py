"""What the endpoint answers: the lines that are served here, their cards, and predictions."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.inference.inputs import of_csv, of_image, of_npy, rows_of
from edge_agent.inference.model import Model
from edge_agent.inference.reporters import ErrorToken
from edge_agent.releases.folder import ReleaseFolder, lines
from edge_agent.releases.loading import card_of
from sojourn.errors import DataError, ModelError, NoRelease, SojournError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from sojourn.data.source import Form

MOST_ROWS = 1024


class RefusedRequest(Exception):
    """A request that is not answered, and with which status."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class PredictRequest(msgspec.Struct, frozen=True):
    """The body of a request in JSON."""

    x: list[Any] | dict[str, Any]


class PredictionApi:
    """Answers requests from the releases of a store; a line is loaded when it is first asked for."""

    def __init__(self, store: Path, token: ErrorToken | None = None) -> None:
        """Serve a store's releases; errors are taken from those who show the token."""
        self._store, self._token = store, token or ErrorToken()
        self._models: dict[str, Model] = {}
        self._loading = threading.Lock()
        self._reading = threading.Lock()
        """A body in JSON takes ten times its size while it is read: one at a time."""

    def lines(self) -> dict[str, Any]:
        """Which lines are served, in which versions, for which tasks, with which classes."""
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
        """The card of the version that predicts, without the rows to check it with."""
        model = self._model(line)
        card: dict[str, Any] = msgspec.to_builtins(model.card)
        del card["probe"]
        return card | ({"threshold": model.threshold} if model.card.anomaly else {})

    def predict(self, line: str, kind: str, body: bytes, authorization: str | None = None) -> dict[str, Any]:
        """What is said of each row, by which version: its class and how likely every class is, else `answers`.

        A release that fails on these rows has made an error, if one says so who may: rows can be made to fail.
        """
        model = self._model(line)
        with self._reading:
            rows = _rows(kind, body, model.card)
        if len(rows) > MOST_ROWS:
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{MOST_ROWS} rows may be asked for at once")
        try:
            return {"line": line, **_answered(model, rows)}
        except ModelError as error:
            if self._token.shown_in(authorization):
                model.report_error(str(error))
            raise

    def note_error(self, line: str, text: str, authorization: str | None = None) -> dict[str, Any]:
        """Have the agent know that a prediction was wrong."""
        if not self._token:
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "no errors are taken here: the owner sets error_token_file")
        if not self._token.shown_in(authorization):
            raise RefusedRequest(HTTPStatus.UNAUTHORIZED, "show the token: Authorization: Bearer ...")
        model = self._model(line)
        model.report_error(text)
        return {"line": line, "version": model.version, "noted": True}

    def _model(self, line: str) -> Model:
        with self._loading:
            model = self._models.get(line)
            if model is None:
                model = self._models[line] = Model(line, self._store, count_failures=False)
        try:
            model.version  # noqa: B018  # says so where the line was withdrawn
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
                f"{kind!r} is none of application/json, application/x-npy, text/csv, image/png and image/jpeg",
            )


def _of_json(body: bytes) -> NDArray[np.generic] | list[Any] | dict[str, Any]:
    """The numbers in a request, or its rows by name."""
    try:
        given = msgspec.json.decode(body, type=PredictRequest).x
        if isinstance(given, dict) or any(isinstance(each, dict) for each in given):
            return given
        x = np.asarray(given)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f'the body is not {{"x": [numbers]}}: {error}') from error
    if x.dtype.kind not in "buif":
        raise DataError('the body is not {"x": [numbers]}, with as many in each row')
    return x
