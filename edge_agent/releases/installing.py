"""Installs a release on this device: verifies it, tries it in a separate process, and swaps it in atomically."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_agent.releases.folder import ReleaseFolder, ServedFiles, Threshold, lines
from edge_agent.releases.orders import Install, Installed, Withdraw, Withdrawn
from edge_agent.training.data_watch import mark_of
from edge_agent.training.process import FOLDER, emptied
from sojourn.data.source import DataSettings
from sojourn.errors import MachineError, ModelError
from sojourn.processes import Child
from sojourn.protocol.release import Health

TRIAL_TIMEOUT = 300.0
"""Maximum seconds of a trial: loading a large graph on a small board, and a few hundred predictions."""
log = logging.getLogger(__name__)


class Trial(msgspec.Struct, frozen=True):
    """A release to try, and the currently served one if the two are to be compared."""

    store: str
    served: ServedFiles
    before: ServedFiles | None
    data: DataSettings
    timeout: float
    readable: tuple[str, ...] = ()
    """Additional paths that the trial process may read."""
    only_threshold: bool = False
    """Whether to measure only the threshold, of a release that is already served."""


class Tried(msgspec.Struct, frozen=True):
    """The result of a trial: why the release must not be served (None if it may), and its health."""

    objection: str | None
    health: Health
    threshold: Threshold | None = None
    """The threshold measured on this device, for a release that detects anomalies."""


class Installer:
    """Performs `Install` and `Withdraw`; newer work on a line ends an older trial of the same line."""

    def __init__(
        self,
        store_folder: Path,
        blobs_folder: Path,
        data: DataSettings,
        *,
        timeout: float = TRIAL_TIMEOUT,
        program: str = "edge_agent.releases.trial_process",
        readable: Sequence[str] = (),
    ) -> None:
        """Install releases from the blob folder in the store, after a trial on this data by the module `program`.

        readable: additional paths that the trial process may read.
        """
        self._store, self._blobs = store_folder.absolute(), blobs_folder.absolute()
        self._data = msgspec.structs.replace(data, path=str(Path(data.path).absolute()))
        self._timeout, self._program, self._readable = timeout, program, tuple(readable)
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}
        self._expected: dict[int, int] = {}
        self._trials: dict[str, Child[Tried]] = {}

    def __call__(self, work: Install | Withdraw) -> Installed | Withdrawn:
        """Install or withdraw; after any failure the previous release is still served."""
        folder = ReleaseFolder(self._store, work.line)
        with self._lock:
            turn = self._expected.pop(id(work), None) or self._next_turn(work.line)
            self._check_newest(work, turn)
            if isinstance(work, Withdraw):
                folder.withdraw()
                return Withdrawn()
            served = ServedFiles(work.line, work.version, work.goods)
            current = folder.current()
            if current == served:  # a power cut came after the swap, before its health was reported
                current = folder.previous()
            if work.known and folder.holds(served):
                folder.make_current(served)
                return Installed(Health())
            folder.place(served, self._blobs)
        return Installed(self._tried_and_swapped(folder, served, current, turn))

    def expect(self, work: Install | Withdraw) -> None:
        """Give this work precedence over older work on its line, before its thread starts."""
        with self._lock:
            self._expected[id(work)] = self._next_turn(work.line)

    def drop(self, line: str) -> None:
        """End the trial of a line's release, if one is active."""
        with self._lock:
            self._next_turn(line)

    def _next_turn(self, line: str) -> int:
        self._newest[line] = self._newest.get(line, 0) + 1
        if trial := self._trials.pop(line, None):
            trial.kill()
        return self._newest[line]

    def _tried_and_swapped(
        self, folder: ReleaseFolder, served: ServedFiles, current: ServedFiles | None, turn: int
    ) -> Health:
        # In a rollback, the older version is not compared with the one that it replaces.
        before = current if current is not None and current.version < served.version else None
        data = data_mark(self._data.path)
        try:
            tried = self._try(Trial(str(self._store), served, before, self._data, self._timeout, self._readable), turn)
            if tried.objection is not None:
                raise ModelError(tried.objection)
        except (MachineError, ModelError):
            with self._lock:
                self._check_newest(served, turn)
                folder.tidy()
            raise
        with self._lock:
            self._check_newest(served, turn)
            self._keep(folder, served, tried.threshold, data)
            folder.make_current(served)
        return tried.health

    def refresh_thresholds(self) -> None:
        """Measure the anomaly thresholds again if the device's data has changed.

        If the data is gone, the measured threshold is kept: it fits this device better than the card's.
        """
        data = data_mark(self._data.path)
        for line in lines(self._store):
            folder = ReleaseFolder(self._store, line)
            with self._lock:
                turn, served = self._newest.setdefault(line, 0), folder.current()
                known = folder.threshold(served) if served else None
                if served is None or known is None or known.data == data or line in self._trials:
                    continue
            trial = Trial(
                str(self._store), served, None, self._data, self._timeout, self._readable, only_threshold=True
            )
            try:
                found = self._try(trial, turn).threshold
            except (MachineError, ModelError) as error:
                log.warning("the threshold of %s could not be measured and is unchanged: %s", line, error)
                continue
            with self._lock:
                if found and found.samples and self._newest[line] == turn and folder.current() == served:
                    self._keep(folder, served, found, data)

    def _keep(self, folder: ReleaseFolder, served: ServedFiles, threshold: Threshold | None, data: str) -> None:
        if threshold is not None:
            folder.keep_threshold(served, msgspec.structs.replace(threshold, data=data))

    def _check_newest(self, work: Install | Withdraw | ServedFiles, turn: int) -> None:
        if self._newest[work.line] != turn:
            raise MachineError(f"a newer order on {work.line} replaced this one")

    def _try(self, trial: Trial, turn: int) -> Tried:
        """Try a release in a child process, whose failure does not affect the agent."""
        name = f"release {trial.served.version} of {trial.served.line}"
        decoder, folder = msgspec.msgpack.Decoder(Tried), self._store / FOLDER
        try:
            child = Child(self._program, decoder, log=log.debug, cwd=emptied(folder), timeout=self._timeout)
        except OSError as error:
            raise MachineError(f"{name} cannot be tried: {error}") from error
        with child:
            with self._lock:
                self._check_newest(trial.served, turn)
                self._trials[trial.served.line] = child
            try:
                return child.ask(trial)
            except MachineError as error:
                raise MachineError(f"the trial of {name} failed: {error}") from error
            finally:
                with self._lock:
                    if self._trials.get(trial.served.line) is child:
                        del self._trials[trial.served.line]


def data_mark(path: str) -> str:
    """Return a short string that changes when the data changes."""
    return hashlib.sha256(repr(mark_of(path)).encode()).hexdigest()[:16]
