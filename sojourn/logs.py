"""What services and commands say to the person who started them."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from sojourn.errors import SojournError, UserError
from sojourn.text import clean, clean_lines

OURS = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")


def set_up(*, verbose: bool = False) -> None:
    """Plain lines on standard error: the time, the level, the text."""
    lines = logging.StreamHandler()
    lines.setFormatter(Lines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    # Libraries speak up only when something is wrong.
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def set_up_worker() -> None:
    """The same for a process that an agent starts: whoever reads its lines knows when they came."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Lines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def complain(error: SojournError) -> int:
    """Say in one line what went wrong; returns the exit code: 2 if the person can mend it in what they gave us."""
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
        """Whatever a peer said, it is one line, and nothing in it is obeyed by a terminal."""
        record.message = clean(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        """A traceback has lines of its own; what an error says may be a peer's text."""
        return clean_lines(super().formatException(ei))


def _coloured() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
