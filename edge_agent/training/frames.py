"""What goes through the pipes between the agent and its training worker: msgpack after a length of four bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.training.cage import CageReport
from edge_agent.training.work import LookAtData, Train, Trained, Warm, Warmed
from sojourn.data.data_survey import DataSurvey
from sojourn.data.source import DataSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = 4
_READ = 64 << 10
_LARGEST = 4 << 20
"""Bytes of a frame. What is large goes through the blobs' folder."""


class WorkerSetup(msgspec.Struct, frozen=True, tag="setup"):
    """The first frame to a worker: where it works, on what, with how many threads, cores and megabytes.

    readable: what else it may read, besides its data and the blobs.
    feature_disk: megabytes that features may take, beside the blobs; free_disk: megabytes that must stay free.
    """

    blobs: str
    data: DataSettings
    threads: int
    cpu_share: float = 1.0
    memory: int | None = None
    readable: tuple[str, ...] = ()
    feature_disk: int = 0
    free_disk: int | None = None


class WorkOrder(msgspec.Struct, frozen=True, tag="order"):
    """A piece of work for the worker, with its name."""

    key: str
    work: Warm | Train | LookAtData


class SetPace(msgspec.Struct, frozen=True, tag="pace"):
    """The share of the time in which to work from now on."""

    share: float


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The worker's report of how far its work is."""

    key: str
    step: int
    steps: int


class Success(msgspec.Struct, frozen=True, tag="success"):
    """The worker's report that its work is done."""

    key: str
    outcome: Warmed | Trained | DataSurvey


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The worker's report that its work failed: a reason's word, and details for people."""

    key: str
    reason: str
    detail: str


Frame = WorkerSetup | WorkOrder | SetPace | CageReport | Advance | Success | Failure
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def framed(frame: Frame) -> bytes:
    """A frame as bytes: its length, then msgpack."""
    data = msgspec.msgpack.encode(frame)
    return len(data).to_bytes(_HEAD, "little") + data


class Frames:
    """Cuts what comes out of a pipe into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete."""
        self._buffer += data
        while len(self._buffer) >= _HEAD:
            end = _HEAD + int.from_bytes(self._buffer[:_HEAD], "little")
            if end > _LARGEST:
                raise msgspec.DecodeError(f"a frame of {end} bytes")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD:end])
            del self._buffer[:end]
            yield _decoder.decode(body)


def frames_from(descriptor: int) -> Iterator[Frame]:
    """All frames of a pipe, until its other end is closed."""
    frames = Frames()
    while data := os.read(descriptor, _READ):
        yield from frames.feed(data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however much the pipe takes at a time."""
    view: Any = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
