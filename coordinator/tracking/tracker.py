"""Tells the process that tracks: nobody waits for it, and whatever becomes of it, the job goes on."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from coordinator.tracking.frames import RunEnded, WriterSetup, line_of

if TYPE_CHECKING:
    from coordinator.tracking.frames import Frame
    from coordinator.tracking.settings import TrackingSettings

STARTS = 5
"""How often the process is started, should it die, before nothing more is tracked until the next start."""
PATIENCE = 60.0
"""Seconds that it is given at the end to write what waits."""
WAITING = 100_000
"""Frames that may wait to be told."""
WORDS = 500
"""Characters of a line that it says."""
log = logging.getLogger(__name__)


class Tracker:
    """Runs that are tracked: a thread feeds a process, which is started with the first of them.

    at_once: start it now, since a run begins soon.
    """

    def __init__(self, settings: TrackingSettings, *, at_once: bool = False) -> None:
        self._setup = WriterSetup(settings.mlflow, settings.tensorboard, settings.experiment)
        self._queue: queue.Queue[Frame | None] = queue.Queue()
        self._told: dict[str, list[Frame]] = {}
        """What was told of each run that is under way: a process that takes another's place is told it again."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        if at_once:
            self._start_again()
        self._thread = threading.Thread(target=self._feed, name="tracking", daemon=True)
        self._thread.start()

    def tell(self, frame: Frame) -> None:
        """Have something tracked; returns at once."""
        if self._queue.qsize() < WAITING:
            self._queue.put(frame)

    def close(self, patience: float = PATIENCE) -> None:
        """Let all be written that waits, but not for ever."""
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            log.warning("tracking: not all was written within %g s", patience)
            if self._process is not None:
                self._process.kill()

    def _feed(self) -> None:
        while (frame := self._queue.get()) is not None:
            self._told.setdefault(frame.id, []).append(frame)
            self._pass_on(frame)
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            if code := self._process.wait():
                log.warning("tracking: its process ended with exit code %d; not all may be written", code)

    def _pass_on(self, frame: Frame) -> None:
        if not self._write(line_of(frame)):
            self._start_again()
        if isinstance(frame, RunEnded):
            del self._told[frame.id]

    def _start_again(self) -> None:
        """Start a process, and tell it all that it may have missed; it knows what is written already."""
        if self._starts == STARTS:
            return
        self._starts += 1
        if self._process is not None:
            more = "it is started again" if self._starts < STARTS else "nothing more is tracked until the next start"
            log.warning("tracking: its process ended with exit code %s; %s", self._process.poll(), more)
        self._process = _started()
        if self._process is not None:
            told = [frame for frames in self._told.values() for frame in frames]
            self._write(b"".join(map(line_of, [self._setup, *told])))

    def _write(self, data: bytes) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(data)
        except (BrokenPipeError, OSError):
            return False
        return True


def _started() -> subprocess.Popen[bytes] | None:
    ours = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH", ""))))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "coordinator.tracking.writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for its parent, which has more to tell it
        )
    except OSError as error:
        log.warning("tracking: its process cannot be started: %s", error)
        return None
    if process.stderr is not None:
        threading.Thread(target=_listen, args=(process.stderr,), name="tracking's words", daemon=True).start()
    return process


def _listen(words: IO[bytes]) -> None:
    """Pass on to the log what the process says."""
    with words:
        for line in iter(lambda: words.readline(1 << 16), b""):
            if text := line.decode(errors="replace").strip()[:WORDS]:
                log.warning("tracking: %s", text)
