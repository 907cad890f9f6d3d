"""What services and commands say to the person who started them."""

from __future__ import annotations

import logging
import os
import sys

from sojourn.errors import SojournError, UserError

OURS = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim")


def set_up(*, verbose: bool = False) -> None:
    """Plain lines on standard error: the time, the level, the text."""
    lines = logging.StreamHandler()
    lines.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    # Libraries speak up only when something is wrong.
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def complain(error: SojournError) -> int:
    """Say in one line what went wrong; returns the exit code: 2 if the person can mend it in what they gave us."""
    colour, plain = ("\x1b[31m", "\x1b[0m") if _coloured() else ("", "")
    print(f"{colour}error: {error}{plain}", file=sys.stderr)  # noqa: T201  # this is where errors are printed
    return 2 if isinstance(error, UserError) else 1


class _Lines(logging.Formatter):
    """Levels in lower case, so that the text stands out."""

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)


def _coloured() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
