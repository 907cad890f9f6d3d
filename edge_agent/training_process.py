"""Has visits trained in a child process that starts when one is near and ends when idle."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from edge_agent.frames import Advance, Failure, Frames, Order, Setup, Success, framed, write_all
from edge_agent.work import Train, Warm
from sojourn.machine import Did, DidNot, Doing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_agent.data import DataSettings
    from edge_agent.frames import Frame

    Report = Callable[[Did | Doing | DidNot], None]

IDLE_SECONDS = 5.0
_LAST_WORDS = 8
_READ = 64 << 10
_GRACE = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    """One piece of work and who wants to hear of it."""

    key: str
    work: Warm | Train
    report: Report


class TrainingProcess:
    """Workers (`sojourn.workers`) that train in one child process, one piece of work at a time."""

    def __init__(
        self, blobs: Path, data: DataSettings, *, threads: int = 1, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Train with the blobs of a folder and this data, on as many threads as the owner allows."""
        self._setup = Setup(str(blobs), data, threads)
        self._idle_seconds = idle_seconds
        self._lock = threading.RLock()
        self._waiting: deque[_Job] = deque()
        self._child: _Child | None = None
        self._minders: dict[threading.Thread, _Child] = {}
        self._closed = False

    def start(self, key: str, work: Warm | Train, report: Report) -> None:
        """Begin as soon as nothing else is under way; training goes before warming."""
        job = _Job(key, work, report)
        with self._lock:
            if isinstance(work, Train):
                trains = sum(isinstance(other.work, Train) for other in self._waiting)
                self._waiting.insert(trains, job)
            else:
                # A newer wish to be warm replaces an older one that was not yet begun.
                self._drop(key)
                self._waiting.append(job)
        self._advance()

    def stop(self, key: str) -> None:
        """Nothing more is heard of this work; training that is under way ends with its process."""
        with self._lock:
            self._drop(key)
            child = self._child
            if child is not None and child.job is not None and child.job.key == key:
                training = isinstance(child.job.work, Train)
                child.job = _Job(key, child.job.work, _to_nobody)
                if training:
                    child.job, self._child = None, None
                    child.process.kill()
        self._advance()

    def close(self) -> None:
        """End the child and wait for its end."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._child = None
            minders = dict(self._minders)
            for child in minders.values():
                child.job = None
                child.process.kill()
        for minder in minders.keys() - {threading.current_thread()}:
            minder.join()

    def _drop(self, key: str) -> None:
        self._waiting = deque(job for job in self._waiting if job.key != key)

    def _advance(self) -> None:
        """Hand the next work to the child, starting one if there is none."""
        with self._lock:
            if self._closed or not self._waiting or (self._child is not None and self._child.job is not None):
                return
            job = self._waiting.popleft()
            try:
                child = self._child or self._start_child()
            except OSError as error:
                failure = DidNot(job.key, _start_reason(error), f"the training process cannot be started: {error}")
            else:
                child.hand(job)
                return
        # Outside of the lock: whoever hears of it may come back with more work.
        job.report(failure)
        self._advance()

    def _start_child(self) -> _Child:
        child = self._child = _Child(self._setup)
        minder = threading.Thread(target=self._mind, args=(child,), name="training process", daemon=True)
        self._minders[minder] = child
        minder.start()
        return child

    def _mind(self, child: _Child) -> None:
        """Pass on what the child says until it is gone, and say so if that was in the middle of work."""
        while child.speaks():
            for frame in child.hear(self._patience(child)):
                self._tell(child, frame)
            self._retire_if_idle(child)
        with self._lock:
            # From here on nobody hands it work, so its pipes can be closed.
            job, child.job = child.job, None
            if self._child is child:
                self._child = None
        status = child.bury()
        with self._lock:
            del self._minders[threading.current_thread()]
        if job is not None:
            job.report(_died(job.key, status, child.last_words))
        self._advance()

    def _tell(self, child: _Child, frame: Frame) -> None:
        with self._lock:
            job = child.job
            if job is None or not isinstance(frame, Advance | Success | Failure):
                return
            if not isinstance(frame, Advance):
                child.job, child.idle_since = None, monotonic()
        match frame:
            case Advance():
                job.report(Doing(job.key, frame.step, frame.steps))
            case Success():
                job.report(Did(job.key, frame.outcome))
            case Failure():
                job.report(DidNot(job.key, frame.reason, frame.detail))
        self._advance()

    def _patience(self, child: _Child) -> float | None:
        with self._lock:
            if child.job is not None or self._child is not child:
                return None
            return max(0.0, child.idle_since + self._idle_seconds - monotonic())

    def _retire_if_idle(self, child: _Child) -> None:
        with self._lock:
            if self._child is child and child.job is None and self._patience(child) == 0.0:
                self._child = None
                child.dismiss()


class _Child:
    """A worker process with its pipes."""

    def __init__(self, setup: Setup) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge_agent.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            bufsize=0, env=environment(), process_group=0,
        )  # fmt: skip
        self.job: _Job | None = None
        self.idle_since = monotonic()
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

    def hand(self, job: _Job) -> None:
        """Give the child its work. It is small and the only one in the pipe, so this does not wait."""
        self.job = job
        self._send(framed(Order(job.key, _without_inline(job.work))))

    def speaks(self) -> bool:
        """Whether a pipe from the child is open."""
        return bool(self._selector.get_map())

    def hear(self, patience: float | None) -> list[Frame]:
        """The frames that came; what it wrote for people goes to the log."""
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

    def dismiss(self) -> None:
        """Let it end: it does so when its input ends."""
        self._stdin.close()

    def bury(self) -> int:
        """Close what is left and return the exit status."""
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
        *lines, self._rest_of_line = (self._rest_of_line + data).split(b"\n")
        for line in lines:
            if text := line.decode(errors="replace").strip()[:500]:
                self.last_words.append(text)
                log.info("training: %s", text)


def environment() -> dict[str, str]:
    """The environment of a process that runs our modules, and what the owner has installed, on its own."""
    ours = str(Path(__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    # A pool of BLAS threads is of no use to the graphs, but it takes memory.
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([ours, inherited] if inherited else [ours]),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _without_inline(work: Warm | Train) -> Warm | Train:
    """The work without blobs that ride along: they are in the folder, and the pipe is narrow."""
    if isinstance(work, Warm):
        return Warm(msgspec.structs.replace(work.kit, inline=None), work.task)
    bare = {name: msgspec.structs.replace(ref, inline=None) for name, ref in work.visit.vectors.items()}
    kit = msgspec.structs.replace(work.visit.kit, inline=None)
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, kit=kit, vectors=bare))


def _died(key: str, status: int, last_words: deque[str]) -> DidNot:
    said = f"; its last words: {' | '.join(last_words)}" if last_words else ""
    if status == -signal.SIGKILL:
        return DidNot(key, "memory", f"the training process was killed, most likely for want of memory{said}")
    how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
    return DidNot(key, "failed", f"the training process ended {how}{said}")


def _start_reason(error: OSError) -> str:
    return "memory" if error.errno in (errno.ENOMEM, errno.EAGAIN) else "failed"


def _to_nobody(_: Did | Doing | DidNot) -> None:
    """Take a report that nobody wants."""
