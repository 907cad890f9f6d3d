"""A job as a run: its settings as parameters, each round's report as figures, with names that every tracker takes."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.tracking.frames import RoundTracked
from sojourn import __version__
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.jobs.settings import JobSettings
    from sojourn.protocol.wire import RoundReport

KEY, VALUE, PARAMS = 200, 500, 200
"""Characters of a name and of a value, and how many settings are told at most."""
_UNTAKEN = re.compile(r"[^A-Za-z0-9_\-. /]")
ARRANGEMENT = "arrangement/"
"""What begins the name of a measure of how good an arrangement is."""


def settings_of(job: JobSettings) -> dict[str, Any]:
    """All settings of a job as they hold, those that its strategy brings among them, as tables of a job file."""
    return {**msgspec.to_builtins(job, enc_hook=str), **msgspec.to_builtins(job.parts(), enc_hook=str)}


def params_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their paths in a file."""
    said = {name: it for name, it in tables.items() if name != "tracking"}
    found = sorted((safe_key(key), clean(str(value), VALUE)) for key, value in _flat(said, ""))
    return dict(found[:PARAMS])


def tags_of(job: JobSettings) -> dict[str, str]:
    """What people look for runs by."""
    return {
        "job": job.name,
        "strategy": job.strategy,
        "model": job.model.name,
        "task": job.task.kind,
        "seed": str(job.seed),
        "rounds": str(job.all_rounds),
        "version": __version__,
    }


def round_of(run: str, report: RoundReport, at: float, more: Mapping[str, float] | None = None) -> RoundTracked:
    """A round's figures by name; what is not known is left out."""
    figures = {
        "accuracy": report.accuracy,
        "loss": report.loss,
        **(report.figures or {}),
        "tours": report.tours,
        "visits": report.visits,
        "failures": report.lost,
        "bytes": report.traffic,
        "seconds": report.seconds,
        **{f"{ARRANGEMENT}{name}": value for name, value in report.quality.items()},
        **(more or {}),
    }
    known = {safe_key(name): float(value) for name, value in figures.items() if math.isfinite(value)}
    return RoundTracked(run, report.round, at, known)


def safe_key(text: str) -> str:
    """A name that MLflow and TensorBoard take: a path of plain characters that does not lead anywhere else."""
    parts = [part for part in _UNTAKEN.sub("_", text).split("/") if part.strip(". ")]
    return ("/".join(parts) or "_")[:KEY]


def _flat(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        elif value not in (None, "", [], ()):
            yield f"{path}{key}", value
