"""Keeps the HTTP endpoint running beside the agent, in a process of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.child import environment

if TYPE_CHECKING:
    from pathlib import Path

_SHORTEST, _LONGEST = 1.0, 60.0
_GRACE = 5.0
log = logging.getLogger(__name__)


class Endpoint(msgspec.Struct, frozen=True):
    """Which releases to serve, on which port of 127.0.0.1, and in which file the word is that reporters must show."""

    store: str
    port: int
    token_file: str | None = None


class EndpointProcess:
    """The endpoint: started again when it dies, the later the more often it does."""

    def __init__(self, store: Path, port: int, token_file: str | None = None) -> None:
        """Serve a store's releases; `token_file` holds the word of those who may report errors, else nobody may."""
        self._settings = msgspec.json.encode(Endpoint(str(store), port, token_file)).decode()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._mind, name="endpoint", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that serves now."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End it, and wait for its end."""
        with self._lock:
            self._closed.set()
            if self._child is not None:
                self._child.terminate()
        if self._thread.is_alive():
            self._thread.join(2 * _GRACE)

    def _mind(self) -> None:
        pause = _SHORTEST
        while not self._closed.is_set():
            begun = monotonic()
            self._run()
            if self._closed.is_set():
                return
            pause = _SHORTEST if monotonic() - begun > _LONGEST else min(2 * pause, _LONGEST)
            log.warning("the endpoint ended; it is started again in %g s", pause)
            self._closed.wait(pause)

    def _run(self) -> None:
        """Start it, pass on what it says, and wait until it has ended."""
        command = [sys.executable, "-P", "-m", "edge_agent.inference.endpoint", self._settings]
        with self._lock:
            if self._closed.is_set():
                return
            try:
                # Its input is what it lives by: the pipe closes when this process is gone, however that ends.
                child = self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=environment(),
                    process_group=0,
                )
            except OSError as error:
                log.warning("the endpoint cannot be started: %s", error)
                return
        with child:
            assert child.stderr  # noqa: S101
            for line in child.stderr:
                log.info("endpoint: %s", line.decode(errors="replace").strip()[:500])
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
        self._child = None
