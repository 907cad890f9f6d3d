"""Which model a job starts from: a new one, weights in a file, or the model of an earlier job.

That of an earlier job is written `job:NAME` or `job:NAME@ROUND`.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal, NamedTuple

from sojourn.errors import ConfigError
from sojourn.protocol.limits import MOST
from sojourn.protocol.topics import check_name

PREFIX = "job:"
BEST: Literal["best"] = "best"
FILES = (".safetensors", ".pt", ".pth", ".bin", ".onnx")
"""How the names of files with weights end."""


class JobStart(NamedTuple):
    """The model of an earlier job: of a round, of the best one, or the newest (None)."""

    job: str
    round: int | Literal["best"] | None = None


def read_start(text: str, where: str) -> JobStart | None:
    """The earlier job that a job file names, None where it names a file; a ConfigError says how to write it."""
    name, at, number = text.removeprefix(PREFIX).partition("@")
    how = (
        f'{where}: model.start = "{text[:100]}": write "job:NAME", "job:NAME@12" for a round, or "job:NAME@best"; or a '
        f"file with weights, {', '.join(FILES[:-1])} or {FILES[-1]}"
    )
    if not text.startswith(PREFIX):
        if PurePath(text).suffix not in FILES:
            raise ConfigError(how)
        return None
    check_name(name, f"{where}: the job in model.start")
    if not at:
        return JobStart(name)
    if number == BEST:
        return JobStart(name, BEST)
    if not (number.isascii() and number.isdigit() and len(number) <= 13 and 0 < int(number) <= MOST):
        raise ConfigError(how)
    return JobStart(name, int(number))
