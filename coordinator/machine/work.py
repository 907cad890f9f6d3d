"""The work that the coordinator's machine asks for, performed. Torch runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.machine.sites import ReadRoster, read_roster
from coordinator.records import JobCompiled
from coordinator.releases.verifying import CheckCard, check_card
from coordinator.rounds.closing import PassLeg, close_round, pass_leg
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.kit_cache import KitCache
from coordinator.rounds.planning import PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob, prepare
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
from sojourn.errors import DiskFull, Fault, JobError, SojournError
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import FolderBlobs, disk_errors, ref_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.rounds.preparing import Compiled
    from sojourn.store.blobs import BlobStore

PATIENCE = 900.0
"""Seconds that a model may take to compile, or to be made a release of."""


class ExportModel(msgspec.Struct, frozen=True, tag="export-model"):
    """Make an ONNX file of the model that a job had after a round."""

    ticket: str
    operator: str
    state: JobState
    round: int


class ModelExported(msgspec.Struct, frozen=True, tag="model-exported"):
    """The ONNX file, as a blob."""

    ticket: str
    operator: str
    model: Ref
    accuracy: float
    round: int


class BuildRelease(msgspec.Struct, frozen=True, tag="build-release"):
    """Make a release of the model that a job had after a round, as an operator asked for it."""

    ticket: str
    operator: str
    state: JobState
    asked: MakeRelease
    round: int


class ReleaseBuilt(msgspec.Struct, frozen=True, tag="release-built"):
    """The release, as two blobs."""

    ticket: str
    operator: str
    graph: Ref
    card: Ref


class _Failure(msgspec.Struct, frozen=True, tag="failure"):
    error: str
    disk_full: bool = False


TorchWork = PrepareJob | ExportModel | BuildRelease
"""What needs torch or onnx."""


class CoordinatorWorker:
    """Performs work here and now. `folder` is where blobs are files, so that another process can share them.

    With a cache of `kits`, those that were compiled before are taken from it; others are compiled `apart`, in another
    process.
    `make` makes the graphs that models are tested with.
    """

    def __init__(
        self,
        blobs: BlobStore,
        folder: Path | None = None,
        *,
        kits: KitCache | None = None,
        apart: bool = True,
        make: Callable[[Kit, int], Graphs] = Graphs,
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._kits, self._apart = kits, apart
        self._evaluator = Evaluator(blobs, make)

    def __call__(self, work: Any) -> Any:
        """Do one piece of work; a disk that is full is a DiskFull, whatever was being written."""
        with disk_errors(f"working ({type(work).__name__})"):
            return _elsewhere(work, self._folder) if self._folder and isinstance(work, TorchWork) else self._do(work)

    def _do(self, work: Any) -> Any:
        match work:
            case PrepareJob():
                # Where torch is not loaded yet, this process stays without its 280 MB.
                spared = self._kits and self._apart and "torch" not in sys.modules
                return prepare(work, self._blobs, self._kits, (lambda: _apart(work)) if spared else None)
            case PlanRound():
                return plan_round(work, self._blobs)
            case PassLeg():
                return pass_leg(work, self._blobs, self._evaluator)
            case CloseRound():
                return close_round(work, self._blobs, self._evaluator)
            case ExportModel():
                return self._export(work)
            case BuildRelease():
                return self._release(work)
            case ReadRoster():
                return read_roster(work, self._blobs)
            case CheckCard():
                return check_card(work, self._blobs)
            case _:
                raise Fault(f"nobody knows how to do {type(work).__name__}")

    def _export(self, work: ExportModel) -> ModelExported:
        from coordinator.compiling.baking import bake  # noqa: PLC0415  # onnx only where it is needed

        kit = self._evaluator.kit(work.state)
        data = bake(kit, vectors.load(self._blobs, work.state.models[work.round], kit.model))
        accuracy = work.state.accuracy(work.round)
        return ModelExported(work.ticket, work.operator, self._keep(data), accuracy, work.round)

    def _release(self, work: BuildRelease) -> ReleaseBuilt:
        from coordinator.releases.making import from_job  # noqa: PLC0415  # torch and onnx only where they are needed

        kit = self._evaluator.kit(work.state)
        vector = vectors.load(self._blobs, work.state.models[work.round], kit.model)
        test = unpack_blob(self._blobs.read(work.state.test.digest), Exemplars) if work.state.test else None
        made = from_job(work.state, work.asked, kit, vector, self._evaluator.exemplars(work.state), test, work.round)
        return ReleaseBuilt(work.ticket, work.operator, self._keep(made.graph), self._keep(made.card_bytes))

    def _keep(self, data: bytes) -> Ref:
        ref = ref_of(data)
        self._blobs.put(data, ref.digest)
        return ref


def _elsewhere(work: TorchWork, folder: Path) -> JobCompiled | ModelExported | ReleaseBuilt:
    """Do work with torch in another process: its memory goes back, and a user's model cannot take the service down.

    A model of one's own is found in this folder, too, after everything else: no file in it takes another's place.
    """
    folders = [path or str(Path.cwd()) for path in (*sys.path, "")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "coordinator.machine.work", str(folder)],
        input=msgspec.msgpack.encode(work),
        stdout=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))},
    )
    if done.returncode:
        raise JobError(f"the work on the model ended with exit code {done.returncode}: see the coordinator's log")
    outcome: JobCompiled | ModelExported | ReleaseBuilt | _Failure = msgspec.msgpack.decode(
        done.stdout, type=JobCompiled | ModelExported | ReleaseBuilt | _Failure
    )
    if isinstance(outcome, _Failure):
        raise DiskFull(outcome.error) if outcome.disk_full else JobError(outcome.error)
    return outcome


def _apart(work: PrepareJob) -> Compiled:
    """Have a job compiled in another process."""
    with tempfile.TemporaryDirectory(prefix="sojourn-kit-") as folder:
        made = _elsewhere(msgspec.structs.replace(work, start=None), Path(folder))  # its own is found here
        assert isinstance(made, JobCompiled)  # noqa: S101  # that is what was asked for
        assert made.initial is not None  # noqa: S101
        blobs = FolderBlobs(Path(folder))
        kit = unpack_blob(blobs.read(made.kit.digest), Kit)
        return kit, vectors.load(blobs, made.initial, kit.model)


def main(folder: str) -> None:
    """The other process: work comes in, its outcome or an error goes out."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # What libraries print must not mix with the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    work = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TorchWork)
    try:
        outcome = CoordinatorWorker(FolderBlobs(Path(folder)), kits=KitCache(), apart=False)(work)
    except SojournError as error:
        outcome = _Failure(str(error), isinstance(error, DiskFull))
    with os.fdopen(answer, "wb") as out:
        out.write(msgspec.msgpack.encode(outcome))


def _end_with_parent(parent: int) -> None:
    """Nobody waits for the answer of a coordinator that is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
