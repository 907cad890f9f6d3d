"""What services and commands say to the person who started them, or to a program that reads it (`json_lines`)."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

from sojourn.errors import ConfigError, SojournError, UserError
from sojourn.json_lines import JsonLines
from sojourn.text import clean, clean_lines

if TYPE_CHECKING:
    from sojourn.about import About

LogFormat = Literal["plain", "json"]
VARIABLE = "SOJOURN_LOG_FORMAT"
"""The variable of the environment that says how the log is written, where neither an option nor a file does."""
OURS = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")
STEP = 15
"""The level of a step of one visit: more than what is only for finding faults, and too much for people to read."""
LEVELS = {
    "debug": logging.DEBUG,
    "step": STEP,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
logging.addLevelName(STEP, "STEP")


def set_up(*, verbose: bool = False, log_format: str | None = None, role: str = "", node: str = "") -> None:
    """Lines on standard error: for people the time, the level, the text; or JSON, with who speaks and what of.

    May be called again, as when settings were read that say another format.
    """
    chosen = chosen_format(log_format)
    lines = logging.StreamHandler()
    lines.setFormatter(
        JsonLines(role, node) if chosen == "json" else Lines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    )
    _replace(lines)
    if chosen == "json":
        _have_all_in_json()
    usual = STEP if chosen == "json" else logging.INFO
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else usual)


def chosen_format(given: str | None) -> LogFormat:
    """How the log is written: as it was given, else as the environment says, else in plain lines."""
    word = given or os.environ.get(VARIABLE) or "plain"
    if word == "json":
        return "json"
    if word != "plain":
        raise ConfigError(
            f"{'--log-format' if given else VARIABLE}: {word!r} is no format of a log: write plain or json"
        )
    return "plain"


def set_up_worker() -> None:
    """The same for a process that an agent starts: whoever reads its lines knows when they came."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Lines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def subject(about: About) -> dict[str, Any]:
    """What a call of `logging` is given so that its line says what it is about."""
    return {"about": about}


def _replace(lines: logging.Handler) -> None:
    """Let one handler speak in the place of an earlier one of ours. Libraries speak up only when something is wrong."""
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each.formatter, Lines | JsonLines)]:
        root.removeHandler(earlier)
    logging.basicConfig(level=logging.WARNING, handlers=[lines])


def _have_all_in_json() -> None:
    """What Python itself would print goes through the log: warnings, and errors that nobody caught."""
    logging.captureWarnings(capture=True)
    log = logging.getLogger("sojourn")

    def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("ended by an error of its own", exc_info=(kind, error, trace))

    sys.excepthook = uncaught
    threading.excepthook = lambda it: uncaught(it.exc_type, it.exc_value or it.exc_type(), it.exc_traceback)


def complain(error: SojournError) -> int:
    """Say in one line what went wrong; returns the exit code: 2 if the person can mend it in what they gave us."""
    if any(isinstance(each.formatter, JsonLines) for each in logging.getLogger().handlers):
        logging.getLogger("sojourn").error("%s", error)
        return 2 if isinstance(error, UserError) else 1
    colour, plain = ("\x1b[31m", "\x1b[0m") if _coloured() else ("", "")
    print(f"{colour}error: {clean_lines(str(error))}{plain}", file=sys.stderr)  # noqa: T201  # this is where errors are printed
    return 2 if isinstance(error, UserError) else 1


class Lines(logging.Formatter):
    """Levels in lower case, so that the text stands out."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole of what is printed."""
        record.levelname = record.levelname.lower()
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        """Whatever a peer said, it is one line, and nothing in it is obeyed by a terminal.

        A step of a visit does not say in words which one: its id goes before it.
        """
        known = record.about.fields if record.levelno == STEP else {}  # type: ignore[attr-defined]  # steps have it
        thing = known.get("visit") or known.get("tour") or known.get("run")
        record.message = clean(f"{thing}: {record.message}" if thing else record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        """A traceback has lines of its own; what an error says may be a peer's text."""
        return clean_lines(super().formatException(ei))


def _coloured() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
