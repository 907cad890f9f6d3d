"""What is told to the process that tracks: runs, their rounds, their ends. Each may be told again without harm."""

from __future__ import annotations

from typing import Literal

import msgspec

ALWAYS = "visits"
"""A figure that every round has: its newest step is the newest round that is written."""
Outcome = Literal["done", "stopped", "refused", "failed", "interrupted"]


class RunBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A run is under way, for the first time or again.

    id: tells it apart from all others, also of the same name, and is the same after a restart. at: since when, in
    seconds since 1970. params: settings that do not change. tags: what may.
    """

    id: str
    name: str
    at: float
    params: dict[str, str] = {}
    tags: dict[str, str] = {}


class RoundTracked(msgspec.Struct, frozen=True, tag="round"):
    """A round of a run has these figures; `at` is in seconds since 1970."""

    id: str
    step: int
    at: float
    metrics: dict[str, float]


class RunEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A run is over, or its process ends before it is."""

    id: str
    outcome: Outcome
    detail: str
    at: float


Frame = RunBegun | RoundTracked | RunEnded


class WriterSetup(msgspec.Struct, frozen=True):
    """Where the process writes; the first line that it reads."""

    mlflow: str | None
    tensorboard: str | None
    experiment: str


_ENCODER = msgspec.json.Encoder()


def line_of(frame: Frame | WriterSetup) -> bytes:
    """A frame as it goes through the pipe."""
    return _ENCODER.encode(frame) + b"\n"
