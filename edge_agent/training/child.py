"""The child process that trains, with its pipes: what is handed to it, and what it says."""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.frames import Frames, SetPace, WorkOrder, framed, write_all
from edge_agent.training.work import LookAtData, Train, Warm, name_of_work
from sojourn import logs
from sojourn.about import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_agent.training.frames import Frame, WorkerSetup
    from sojourn.node.machine import Did, DidNot, Doing

    Report = Callable[[Did | Doing | DidNot], None]

FOLDER = "worker"
"""The empty folder in a device's store that processes with graphs run in."""
_LAST_WORDS = 8
_READ = 64 << 10
_GRACE = 5.0
_KEPT = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "XDG_DATA_HOME", "SOJOURN_STORE"))
_KEPT_BEGINNINGS = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "ORT_", "OMP_", "MKL_")
"""Variables of the environment that a process of ours is given."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkItem:
    """One piece of work, its name, and the function that is told how it goes."""

    key: str
    work: Warm | Train | LookAtData
    report: Report


class Child:
    """A worker process with its pipes."""

    def __init__(self, setup: WorkerSetup, folder: Path) -> None:
        """Start one in this folder."""
        self._data = setup.data.path
        self._data_identity = _identity(self._data)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge_agent.training.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment(),
            cwd=emptied(folder),
            process_group=0,
        )
        self.item: WorkItem | None = None
        self.idle_since = monotonic()
        self.next_look = 0.0
        self.handed_at = 0.0
        self.has_begun = False
        """Whether the first step of its work is behind it: graphs and data are ready."""
        self._about = NOTHING
        """What its work is about, or was: what it says may be read later."""
        self._pace = 1.0
        self.last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._frames = Frames()
        self._rest_of_line = b""
        self._selector = selectors.DefaultSelector()
        assert self.process.stdin and self.process.stdout and self.process.stderr  # noqa: S101, PT018
        self._stdin = self.process.stdin
        self._stdout = self.process.stdout.fileno()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._selector.register(self.process.stderr, selectors.EVENT_READ)
        self._send(framed(setup))

    def hand(self, item: WorkItem) -> None:
        """Give the child its work. It is small and the only one in the pipe, so this does not wait."""
        self.item, self.next_look = item, 0.0
        self.handed_at, self.has_begun = monotonic(), False
        self._about = item.work.visit.id.about() if isinstance(item.work, Train) else NOTHING
        given = name_of_work(item.key, item.work)
        log.log(logs.STEP, "process %d is given %s", self.process.pid, given, extra=logs.subject(self._about))
        self._send(framed(WorkOrder(item.key, _without_inline(item.work))))

    def begins(self) -> None:
        """Take note that it is ready and at its first step, or beyond."""
        if not self.has_begun:
            self.has_begun = True
            log.log(logs.STEP, "process %d has begun", self.process.pid, extra=logs.subject(self._about))

    @property
    def sees_old_data(self) -> bool:
        """Whether the data is another file by now: the cage lets the child read the one that was there."""
        return _identity(self._data) != self._data_identity

    def set_pace(self, share: float) -> None:
        """Have the child work for this share of the time: 1 is without pauses."""
        if share == self._pace:
            return
        if (share < 1) != (self._pace < 1):
            text = "training is slowed: it is hot" if share < 1 else "training runs at full speed again"
            log.info(text, extra=logs.subject(self._about))
        self._pace = share
        self._send(framed(SetPace(share)))

    def speaks(self) -> bool:
        """Whether a pipe from the child is open."""
        return bool(self._selector.get_map())

    def hear(self, patience: float | None) -> list[Frame]:
        """Wait for frames, at most `patience` seconds; what the child wrote for people goes to the log."""
        frames: list[Frame] = []
        for key, _ in self._selector.select(patience):
            data = os.read(key.fd, _READ)
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fd == self._stdout:
                frames += self._parse(data)
            else:
                self._log(data)
        return frames

    def _parse(self, data: bytes) -> list[Frame]:
        try:
            return list(self._frames.feed(data))
        except msgspec.MsgspecError as error:
            self.last_words.append(f"not a frame: {error}")
            self.process.kill()
            return []

    def close_input(self) -> None:
        """Close its input, upon which the child ends."""
        self._stdin.close()

    def reap(self) -> int:
        """Close its pipes, wait for its end and return the exit status."""
        self._log(b"\n")
        self._selector.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            return self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _send(self, data: bytes) -> None:
        try:
            write_all(self._stdin.fileno(), data)
        except BrokenPipeError:
            # It has just died; whoever minds it sees the end of its output and tells.
            log.debug("the training process is gone")

    def _log(self, data: bytes) -> None:
        *lines, rest = (self._rest_of_line + data).split(b"\n")
        self._rest_of_line = rest[-_READ:]
        for line in lines:
            if text := line.decode(errors="replace").strip()[:500]:
                self.last_words.append(text)
                log.info("training: %s", text, extra=logs.subject(self._about))


def emptied(folder: Path) -> Path:
    """A folder to run in that has nothing in it: a graph finds no file that it could name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment() -> dict[str, str]:
    """The environment of a process that runs our modules, and what the owner has installed, on its own.

    It keeps what tells Python and its libraries how to run; anything else may be a secret, or meant for the agent.
    """
    ours = str(Path(__file__).resolve().parents[2])
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)}
    inherited = [str(Path(path).absolute()) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    # A pool of BLAS threads is of no use to the graphs, but it takes memory.
    return kept | {"PYTHONPATH": os.pathsep.join([ours, *inherited]), "OPENBLAS_NUM_THREADS": "1"}


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _without_inline(work: Warm | Train | LookAtData) -> Warm | Train | LookAtData:
    """The work without blobs that ride along: they are in the folder, and the pipe is narrow."""
    if isinstance(work, LookAtData):
        return work
    if isinstance(work, Warm):
        return Warm(msgspec.structs.replace(work.kit, inline=None), work.task)
    bare = {name: msgspec.structs.replace(ref, inline=None) for name, ref in work.visit.vectors.items()}
    kit = msgspec.structs.replace(work.visit.kit, inline=None)
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, kit=kit, vectors=bare))
