"""A job as a run: settings as parameters, rounds as metrics, and the messages that carry them to the writer process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from coordinator.jobs.settings import JobSettings
from sojourn import __version__
from sojourn.protocol.wire import RoundReport
from sojourn.text import clean

ALWAYS = "visits"
"""A metric that every round has: its newest step is the newest written round."""
Outcome = Literal["done", "stopped", "refused", "failed", "interrupted"]


class RunBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A run begins or continues.

    id: unique among all runs, including those with the same name, and unchanged after a restart. at: the start in
    seconds since 1970. params: settings that do not change. tags: values that may change.
    """

    id: str
    name: str
    at: float
    params: dict[str, str] = {}
    tags: dict[str, str] = {}


class RoundTracked(msgspec.Struct, frozen=True, tag="round"):
    """The metrics of a round of a run; `at` is in seconds since 1970."""

    id: str
    step: int
    at: float
    metrics: dict[str, float]


class RunEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A run has ended, or its process ends first."""

    id: str
    outcome: Outcome
    detail: str
    at: float


Frame = RunBegun | RoundTracked | RunEnded


class WriterSetup(msgspec.Struct, frozen=True, tag="setup"):
    """The stores of the writer process; the first frame that it reads."""

    mlflow: str | None
    tensorboard: str | None
    experiment: str


KEY, VALUE, PARAMS = 200, 500, 200
"""The maximum numbers of characters of a name and of a value, and of parameters."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. /]")
ARRANGEMENT = "arrangement/"
"""The prefix of the names of an arrangement's measures."""


def settings_of(job: JobSettings) -> dict[str, Any]:
    """Return all settings of a job, including those of its strategy, as tables of a job file."""
    return {**msgspec.to_builtins(job, enc_hook=str), **msgspec.to_builtins(job.parts(), enc_hook=str)}


def params_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by their paths in a file."""
    kept = {name: it for name, it in tables.items() if name != "tracking"}
    found = sorted((safe_key(key), clean(str(value), VALUE)) for key, value in _flat(kept, ""))
    return dict(found[:PARAMS])


def tags_of(job: JobSettings) -> dict[str, str]:
    """Return the tags by which users search for runs."""
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
    """Return a round's metrics by name, without unknown values."""
    metrics = {
        "accuracy": report.accuracy,
        "loss": report.loss,
        **report.metrics,
        "tours": report.tours,
        "visits": report.visits,
        "failures": report.lost,
        "bytes": report.traffic,
        "seconds": report.seconds,
        **{f"{ARRANGEMENT}{name}": value for name, value in report.quality.items()},
        **(more or {}),
    }
    known = {safe_key(name): float(value) for name, value in metrics.items() if math.isfinite(value)}
    return RoundTracked(run, report.round, at, known)


def safe_key(text: str) -> str:
    """Return a name that MLflow and TensorBoard accept: a path of plain characters without `..`."""
    parts = [part for part in _UNSAFE.sub("_", text).split("/") if part.strip(". ")]
    return ("/".join(parts) or "_")[:KEY]


def _flat(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        elif value not in (None, "", [], ()):
            yield f"{path}{key}", value
