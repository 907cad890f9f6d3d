"""Logging of services and commands, as plain lines or JSON, with the subject of each line."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any, Literal

import msgspec

from sojourn.errors import ConfigError, SojournError, UserError
from sojourn.text import LINE, clean, clean_lines

# All roles log the same fields and ids.
#
# The id of a visit is `RUN/ROUND/TOUR/HOP`, that of a tour `RUN/ROUND/TOUR`; a run is a job, by name. Coordinator, edge
# server and agent derive them from the numbers in every message on a visit. Messages, records and CSV files count tours
# and hops from 0; texts for people count them from 1 (`ordinal`).


def ordinal(number: int) -> int:
    """Return the number of a tour or hop for display, counted from 1."""
    return number + 1


class About(msgspec.Struct, frozen=True):
    """The subject of a log line, as far as known; it is formatted only if the line is written.

    attempt: the fencing number of the tour, and that of the visit, since a hop may be retried.
    """

    run: str = ""
    round: int | None = None
    tour: int | None = None
    hop: int | None = None
    attempt: tuple[int, int] | None = None
    device: str = ""
    site: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The known fields, by their names in the log."""
        found = {
            "run": self.run or None,
            "round": self.round,
            "tour": self._path(self.tour),
            "visit": self._path(self.tour, self.hop),
            "attempt": self.attempt and f"{self.attempt[0]}.{self.attempt[1]}",
            "device": self.device or None,
            "site": self.site or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _path(self, *numbers: int | None) -> str | None:
        known = [ordinal(number) for number in numbers if number is not None]
        if self.round is None or len(known) < len(numbers):
            return None
        return "/".join([self.run, *map(str, (self.round, *known))])


NO_SUBJECT = About()
"""The subject of lines about the node as a whole."""


MAX_FIELD = 200
"""Maximum characters of a field other than the message."""
MAX_EXCEPTION = 20_000
"""Maximum characters of an exception with its traceback."""
_ENCODER = msgspec.json.Encoder()
_OWN_FIELD = {"agent": "device", "edge": "site"}
"""The field with the node's own name in every line of a role."""


class JsonLines(logging.Formatter):
    """Formats a line as a JSON object: time, level, role, node, message, subject, and traceback."""

    def __init__(self, role: str, node: str) -> None:
        super().__init__()
        self._source = {name: value for name, value in (("role", role), ("node", node)) if value}
        own = _OWN_FIELD.get(role)
        self._own = {own: node} if own and node else {}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; the result is always one object on one line."""
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower() if record.levelname != "STEP" else "info",
            **self._source,
            "message": clean(_message(record), LINE),
        }
        about = getattr(record, "about", NO_SUBJECT).fields
        line |= {
            name: clean(it, MAX_FIELD) if isinstance(it, str) else it for name, it in {**self._own, **about}.items()
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = clean_lines(self.formatException(record.exc_info), MAX_EXCEPTION)
        return _ENCODER.encode(line).decode()


def _utc(moment: float) -> str:
    """Format a time as RFC 3339, in UTC with milliseconds."""
    seconds, thousandths = divmod(int(moment * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the format and its arguments do not match: log both
        return f"{record.msg} {record.args!r}"


LogFormat = Literal["plain", "json"]
VARIABLE = "SOJOURN_LOG_FORMAT"
"""The environment variable with the log format, used if neither an option nor a file sets it."""
OURS = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")
STEP = 15
"""The log level of the steps of a visit, between debug and info: too verbose for people."""
LEVELS = {
    "debug": logging.DEBUG,
    "step": STEP,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
logging.addLevelName(STEP, "STEP")


def set_up(*, verbose: bool = False, log_format: str | None = None, role: str = "", node: str = "") -> None:
    """Set up logging to standard error, as plain lines or JSON.

    It can be called again, for example after the settings have been read.
    """
    chosen = chosen_format(log_format)
    lines = logging.StreamHandler()
    lines.setFormatter(
        JsonLines(role, node) if chosen == "json" else Lines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    )
    _replace(lines)
    if chosen == "json":
        _log_everything_as_json()
    usual = STEP if chosen == "json" else logging.INFO
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else usual)


def chosen_format(given: str | None) -> LogFormat:
    """Return the log format: the given one, or that of the environment, or plain."""
    word = given or os.environ.get(VARIABLE) or "plain"
    if word == "json":
        return "json"
    if word != "plain":
        raise ConfigError(f"{'--log-format' if given else VARIABLE}: {word!r} is not a log format: use plain or json")
    return "plain"


def set_up_worker() -> None:
    """Set up logging of a worker process, without times, because the agent adds them."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Lines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def subject(about: About) -> dict[str, Any]:
    """Return the `extra` argument of a logging call that sets the subject of the line."""
    return {"about": about}


def _replace(lines: logging.Handler) -> None:
    """Replace an earlier handler of Sojourn; libraries log only warnings and errors."""
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each.formatter, Lines | JsonLines)]:
        root.removeHandler(earlier)
    logging.basicConfig(level=logging.WARNING, handlers=[lines])


def _log_everything_as_json() -> None:
    """Log what Python would print itself: warnings and uncaught exceptions."""
    logging.captureWarnings(capture=True)
    log = logging.getLogger("sojourn")

    def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("ended by an uncaught exception", exc_info=(kind, error, trace))

    sys.excepthook = uncaught
    threading.excepthook = lambda it: uncaught(it.exc_type, it.exc_value or it.exc_type(), it.exc_traceback)


def report_error(error: SojournError) -> int:
    """Print an error in one line; return the exit code: 2 for an error of the user, otherwise 1."""
    if any(isinstance(each.formatter, JsonLines) for each in logging.getLogger().handlers):
        logging.getLogger("sojourn").error("%s", error)
    else:
        coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        colour, plain = ("\x1b[31m", "\x1b[0m") if coloured else ("", "")
        print(f"{colour}error: {clean_lines(str(error))}{plain}", file=sys.stderr)  # noqa: T201  # errors are printed here
    return 2 if isinstance(error, UserError) else 1


class Lines(logging.Formatter):
    """Formats plain lines, with the level in lower case."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        record.levelname = record.levelname.lower()
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's method name
        """Format the message as one line without terminal control sequences, which may come from a peer.

        A step of a visit is prefixed with the visit's id.
        """
        known = record.about.fields if record.levelno == STEP else {}  # type: ignore[attr-defined]  # steps always have it
        thing = known.get("visit") or known.get("tour") or known.get("run")
        record.message = clean(f"{thing}: {record.message}" if thing else record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's method name
        """Format a traceback without terminal control sequences, which may come from a peer."""
        return clean_lines(super().formatException(ei))
