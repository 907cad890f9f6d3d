"""Writes log lines of simulated roles to a file with simulated time, instead of to the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.logs import Lines

ROLES = ("sojourn", "edge_agent", "hierarchy", "coordinator")


class SimulatedLines(Lines):
    """Log lines that start with the seconds on the fleet's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__("%(levelname)s %(message)s")
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return f"{self._clock():.3f} s {super().format(record)}"


class RolesLog(logging.FileHandler):
    """A file of warnings. Errors also go to the terminal, because most of them are bugs in the simulator."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        if record.levelno >= logging.ERROR:
            logging.getLogger().callHandlers(record)


@contextmanager
def roles_log(path: Path, clock: Callable[[], float]) -> Iterator[None]:
    """Send warnings of all roles to a file, which is created at the first warning."""
    lines = RolesLog(path, encoding="utf-8", delay=True)
    lines.setFormatter(SimulatedLines(clock))
    lines.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ROLES]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagated in zip(loggers, before, strict=True):
            logger.propagate = propagated
            logger.removeHandler(lines)
        lines.close()
