"""Makes a release the one that this device serves: verified, tried in a process of its own, and swapped in one step."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_agent.releases.folder import ReleaseFolder, ServedFiles, Threshold, lines
from edge_agent.releases.work import Install, Installed, Withdraw, Withdrawn
from edge_agent.training.child import FOLDER, emptied, environment
from edge_agent.training.data_watch import mark_of
from sojourn.data.source import DataSettings
from sojourn.errors import MachineError, ModelError
from sojourn.protocol.release import Health

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE = 300.0
"""Seconds that a trial may take: loading a large graph on a small board, and some hundred predictions."""
_LAST_WORDS = 500
log = logging.getLogger(__name__)


class Trial(msgspec.Struct, frozen=True):
    """What to try, and the release that is served until now, if the two are to be compared."""

    store: str
    served: ServedFiles
    before: ServedFiles | None
    data: DataSettings
    patience: float
    readable: tuple[str, ...] = ()
    """What the process that tries it may read besides."""
    only_threshold: bool = False
    """Whether it is served already, and only its threshold is wanted."""


class Tried(msgspec.Struct, frozen=True):
    """How a trial ended: why the release must not be served, or else how well it did."""

    objection: str | None
    health: Health
    threshold: Threshold | None = None
    """Of a release that finds anomalies: measured here."""


class Installer:
    """Performs `Install` and `Withdraw`. A newer wish for a line ends an older one that is still being tried."""

    def __init__(
        self,
        store_folder: Path,
        blobs_folder: Path,
        data: DataSettings,
        *,
        patience: float = PATIENCE,
        program: str = "edge_agent.releases.trial_process",
        readable: Sequence[str] = (),
    ) -> None:
        """Serve from a store what is in a blob folder; new releases are tried on this data, by this module.

        readable: what the process that tries them may read besides.
        """
        self._store, self._blobs = store_folder.absolute(), blobs_folder.absolute()
        self._data = msgspec.structs.replace(data, path=str(Path(data.path).absolute()))
        self._patience, self._program, self._readable = patience, program, tuple(readable)
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}
        self._expected: dict[int, int] = {}
        self._trials: dict[str, subprocess.Popen[bytes]] = {}

    def __call__(self, work: Install | Withdraw) -> Installed | Withdrawn:
        """Install or withdraw; whatever goes wrong, the release that was served before still is."""
        folder = ReleaseFolder(self._store, work.line)
        with self._lock:
            turn = self._expected.pop(id(work), None) or self._next_turn(work.line)
            self._check_newest(work, turn)
            if isinstance(work, Withdraw):
                folder.withdraw()
                return Withdrawn()
            served = ServedFiles(work.line, work.version, work.goods)
            current = folder.current()
            if current == served:  # a power cut came between the swap and the word of it: how it does is not known
                current = folder.previous()
            if work.known and folder.holds(served):
                folder.make_current(served)
                return Installed(Health())
            folder.place(served, self._blobs)
        return Installed(self._tried_and_swapped(folder, served, current, turn))

    def expect(self, work: Install | Withdraw) -> None:
        """Let this work overtake what is older on its line now, though it may be a moment until its thread runs."""
        with self._lock:
            self._expected[id(work)] = self._next_turn(work.line)

    def drop(self, line: str) -> None:
        """End the trial of a line's release, if there is one: its result is no longer wanted."""
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
        # An older version that returns is not measured against the one that it is to replace.
        before = current if current is not None and current.version < served.version else None
        data = data_mark(self._data.path)
        try:
            tried = self._try(Trial(str(self._store), served, before, self._data, self._patience, self._readable), turn)
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
        """Measure anew from which score on a sample is an anomaly, where the device's data has changed since.

        Where the data is gone, what was measured on it still says more of this device than the card does.
        """
        data = data_mark(self._data.path)
        for line in lines(self._store):
            folder = ReleaseFolder(self._store, line)
            with self._lock:
                turn, served = self._newest.setdefault(line, 0), folder.current()
                known = folder.threshold(served) if served else None
                if served is None or known is None or known.data == data or line in self._trials:
                    continue
            asked = Trial(
                str(self._store), served, None, self._data, self._patience, self._readable, only_threshold=True
            )
            try:
                found = self._try(asked, turn).threshold
            except (MachineError, ModelError) as error:
                log.warning("the threshold of %s stays as it was: %s", line, error)
                continue
            with self._lock:
                if found and found.samples and self._newest[line] == turn and folder.current() == served:
                    self._keep(folder, served, found, data)

    def _keep(self, folder: ReleaseFolder, served: ServedFiles, threshold: Threshold | None, data: str) -> None:
        if threshold is not None:
            folder.keep_threshold(served, msgspec.structs.replace(threshold, data=data))

    def _check_newest(self, work: Install | Withdraw | ServedFiles, turn: int) -> None:
        if self._newest[work.line] != turn:
            raise MachineError(f"an order on {work.line} was overtaken by a newer one")

    def _try(self, trial: Trial, turn: int) -> Tried:
        """Try a release in a child process; whatever becomes of that, the agent goes on."""
        name = f"release {trial.served.version} of {trial.served.line}"
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
                cwd=emptied(self._store / FOLDER),
                process_group=0,
            )
        except OSError as error:
            raise MachineError(f"{name} cannot be tried: {error}") from error
        with self._lock:
            self._check_newest_or_kill(trial.served, turn, child)
            self._trials[trial.served.line] = child
        try:
            answer, printed = child.communicate(msgspec.msgpack.encode(trial), timeout=self._patience)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise MachineError(f"{name} was tried for {self._patience:g} s without an end") from None
        finally:
            with self._lock:
                if self._trials.get(trial.served.line) is child:
                    del self._trials[trial.served.line]
        return _answer(name, child.returncode, answer, printed)

    def _check_newest_or_kill(self, served: ServedFiles, turn: int, child: subprocess.Popen[bytes]) -> None:
        try:
            self._check_newest(served, turn)
        except MachineError:
            child.kill()
            child.communicate()
            raise


def data_mark(path: str) -> str:
    """A few letters that change when the data does."""
    return hashlib.sha256(repr(mark_of(path)).encode()).hexdigest()[:16]


def _answer(name: str, status: int, answer: bytes, printed: bytes) -> Tried:
    words = printed.decode(errors="replace").strip()[-_LAST_WORDS:].splitlines()
    last = f"; its last words: {words[-1]}" if words else ""
    if status:
        how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
        raise MachineError(f"the process that tried {name} ended {how}{last}")
    try:
        return msgspec.msgpack.decode(answer, type=Tried)
    except msgspec.MsgspecError:
        raise MachineError(f"the process that tried {name} gave no answer{last}") from None
