"""Keeps the HTTP endpoint running in a separate process next to the agent."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from time import monotonic

import msgspec

from sojourn.processes import GRACE, Child

_MIN_PAUSE, _MAX_PAUSE = 1.0, 60.0
log = logging.getLogger(__name__)


class Endpoint(msgspec.Struct, frozen=True):
    """The settings of the endpoint: the store of its releases, the port on 127.0.0.1, and the error token's file."""

    store: str
    port: int
    token_file: str | None = None


SETTINGS = msgspec.msgpack.Decoder(Endpoint)


class EndpointProcess:
    """The endpoint's process, restarted with an increasing pause when it ends."""

    def __init__(self, store: Path, port: int, token_file: str | None = None) -> None:
        """Serve a store's releases; `token_file` contains the token for error reports, which are refused without it."""
        self._settings = Endpoint(str(store), port, token_file)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._child: Child[None] | None = None
        self._thread = threading.Thread(target=self._keep_running, name="endpoint", daemon=True)

    @property
    def pid(self) -> int | None:
        """The id of the endpoint's process, if it is running."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        """Start the endpoint; return immediately."""
        self._thread.start()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        with self._lock:
            self._closed.set()
            if self._child is not None:
                self._child.kill()
        if self._thread.is_alive():
            self._thread.join(2 * GRACE)

    def _keep_running(self) -> None:
        pause = _MIN_PAUSE
        while not self._closed.is_set():
            begun = monotonic()
            self._run()
            if self._closed.is_set():
                return
            pause = _MIN_PAUSE if monotonic() - begun > _MAX_PAUSE else min(2 * pause, _MAX_PAUSE)
            log.warning("the endpoint ended; restarting in %g s", pause)
            self._closed.wait(pause)

    def _run(self) -> None:
        """Start the process, log its output, and wait for its end."""
        with self._lock:
            if self._closed.is_set():
                return
            try:
                child = self._child = Child(
                    "edge_agent.inference.endpoint", msgspec.msgpack.Decoder(None), log=_log_line
                )
            except OSError as error:
                log.warning("the endpoint cannot be started: %s", error)
                return
        with child:
            child.send(self._settings)
            child.wait()
        self._child = None


def _log_line(line: str) -> None:
    log.info("endpoint: %s", line)
