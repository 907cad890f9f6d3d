"""The work that the coordinator's machine asks for, performed. Torch runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from coordinator.jobs.model import exported_model
from coordinator.machine.sites import ReadRoster, read_roster
from coordinator.machine.steps import Steps
from coordinator.records import JobCompiled
from coordinator.releases.verifying import CheckCard, check_card
from coordinator.rounds.census import Census
from coordinator.rounds.closing import PassLeg, close_round, pass_leg
from coordinator.rounds.evaluation import Evaluator, MeasureRound, measure_round
from coordinator.rounds.finishing import FinishRound, RoundFinished, finish_round
from coordinator.rounds.hop_check import HopCheck
from coordinator.rounds.kit_cache import KitCache
from coordinator.rounds.planning import PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob, prepare
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
from sojourn.errors import DiskFull, Fault, JobError, SojournError
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.parts import name_of
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import FolderBlobs, disk_errors, ref_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.rounds.node_keys import NodeKeys
    from coordinator.rounds.preparing import Compiled
    from hierarchy.edge.exemplar_view import ExemplarViews
    from sojourn.store.blobs import BlobStore

PATIENCE = 900.0
"""Seconds that a model may take to compile, or to be made a release of."""
FINISH_PATIENCE = 48 * 3600.0
"""Seconds that a finisher may take: one that trains without a GPU takes hours."""


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


class _Step(msgspec.Struct, frozen=True, tag="step"):
    text: str


TorchWork = PrepareJob | ExportModel | BuildRelease | FinishRound
"""What needs torch or onnx."""
_Outcome = JobCompiled | ModelExported | ReleaseBuilt | RoundFinished
_Frame = _Step | _Outcome | _Failure
"""What the other process says."""
_HEAD = 4
"""The bytes before each that say how many it has."""


class CoordinatorWorker:
    """Performs work here and now. `folder` is where blobs are files, so that another process can share them.

    With a cache of `kits`, those that were compiled before are taken from it; others are compiled `apart`, in another
    process.
    `make` makes the graphs that models are tested with; `views` are those of edge servers in the same process. `tell`
    is told in words what long work is at. `keys` are those that devices sign with.
    """

    def __init__(
        self,
        blobs: BlobStore,
        folder: Path | None = None,
        *,
        kits: KitCache | None = None,
        apart: bool = True,
        make: Callable[[Kit, int], Graphs] = Graphs,
        tell: Callable[[str], None] = lambda _text: None,
        views: ExemplarViews | None = None,
        keys: NodeKeys | None = None,
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._kits, self._apart = kits, apart
        self._evaluator, self._census = Evaluator(blobs, make, views), Census()
        self._tell = tell
        self._keys, self._hops = keys, HopCheck(keys)

    def __call__(self, work: Any, tell: Callable[[str], None] | None = None) -> Any:
        """Do one piece of work; a disk that is full is a DiskFull, whatever was being written."""
        with Steps(tell or self._tell) as steps:
            return self.perform(work, steps)

    def perform(self, work: Any, say: Callable[[str], None]) -> Any:
        """Do one piece of work; `say` is told each of its steps as it begins."""
        with disk_errors(f"working ({type(work).__name__})"):
            if self._folder and isinstance(work, TorchWork):
                return _elsewhere(work, self._folder, say)
            return self._do(work, say)

    def _do(self, work: Any, say: Callable[[str], None]) -> Any:  # noqa: C901  # one short case for each kind of work
        match work:
            case PrepareJob():
                # Where torch is not loaded yet, this process stays without its 280 MB.
                spared = self._kits and self._apart and "torch" not in sys.modules
                return prepare(work, self._blobs, self._kits, (lambda: _apart(work, say)) if spared else None, say)
            case PlanRound():
                return plan_round(work, self._blobs, self._census)
            case PassLeg():
                return pass_leg(work, self._blobs, self._evaluator, self._hops)
            case CloseRound():
                return close_round(work, self._blobs, self._evaluator, self._hops, partial(self._finish, say=say))
            case FinishRound():
                return finish_round(work, self._blobs, say)
            case MeasureRound():
                return measure_round(work, self._evaluator)
            case ExportModel():
                return self._export(work)
            case BuildRelease():
                return self._release(work)
            case ReadRoster():
                return read_roster(work, self._blobs, self._keys)
            case CheckCard():
                return check_card(work, self._blobs)
            case _:
                raise Fault(f"nobody knows how to do {type(work).__name__}")

    def _finish(self, work: FinishRound, say: Callable[[str], None]) -> RoundFinished:
        """A finisher's work: in a process of its own where it asks for one and blobs are files."""
        say(f"finishing the round: {name_of(work.state.strategy.finisher)}")
        if not self._folder or not work.state.strategy.finisher.apart:
            return finish_round(work, self._blobs, say)
        done = _elsewhere(work, self._folder, say, FINISH_PATIENCE)
        assert isinstance(done, RoundFinished)  # noqa: S101  # that is what was asked for
        return done

    def _export(self, work: ExportModel) -> ModelExported:
        kit = self._evaluator.kit(work.state)
        vector = vectors.load(self._blobs, work.state.models[work.round], kit.model)
        data, accuracy = exported_model(kit, vector), work.state.accuracy(work.round)
        if work.state.unmeasured and work.round == len(work.state.history):  # its figures are on their way
            accuracy = self._evaluator.evaluate(work.state, vector).accuracy
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


def _elsewhere(work: TorchWork, folder: Path, say: Callable[[str], None], patience: float | None = None) -> _Outcome:
    """Do work with torch in another process: its memory goes back, and a user's model cannot take the service down.

    A model of one's own is found in this folder, too, after everything else: no file in it takes another's place.
    """
    patience = PATIENCE if patience is None else patience
    folders = [path or str(Path.cwd()) for path in (*sys.path, "")]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "coordinator.machine.work", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))},
    ) as child:
        assert child.stdin is not None  # noqa: S101
        assert child.stdout is not None  # noqa: S101
        late = threading.Event()

        def end() -> None:
            late.set()  # before the child ends: whoever hears that it has ended asks why
            child.kill()

        ended = threading.Timer(patience, end)
        ended.daemon = True
        ended.start()
        try:
            with suppress(BrokenPipeError), child.stdin as given:
                given.write(msgspec.msgpack.encode(work))
            outcome = _heard(child.stdout, say)
            child.wait()
        except BaseException:  # nobody waits for it any more
            child.kill()
            raise
        finally:
            ended.cancel()
    if late.is_set() and outcome is None:
        raise JobError(f"the work on the model may take {patience / 60:g} minutes, and took longer")
    if child.returncode or outcome is None:
        raise JobError(f"the work on the model ended with exit code {child.returncode}: see the coordinator's log")
    if isinstance(outcome, _Failure):
        raise DiskFull(outcome.error) if outcome.disk_full else JobError(outcome.error)
    return outcome


def _heard(answers: IO[bytes], say: Callable[[str], None]) -> _Outcome | _Failure | None:
    """The outcome that comes at the end, with each step told on the way; None if nothing came."""
    while len(head := answers.read(_HEAD)) == _HEAD:
        frame: _Frame = msgspec.msgpack.decode(answers.read(int.from_bytes(head)), type=_Frame)
        if not isinstance(frame, _Step):
            return frame
        say(frame.text)
    return None


def _apart(work: PrepareJob, say: Callable[[str], None]) -> Compiled:
    """Have a job compiled in another process."""
    with tempfile.TemporaryDirectory(prefix="sojourn-kit-") as folder:
        made = _elsewhere(msgspec.structs.replace(work, start=None), Path(folder), say)  # its own is found here
        assert isinstance(made, JobCompiled)  # noqa: S101  # that is what was asked for
        assert made.initial is not None  # noqa: S101
        blobs = FolderBlobs(Path(folder))
        kit = unpack_blob(blobs.read(made.kit.digest), Kit)
        return kit, vectors.load(blobs, made.initial, kit.model)


def main(folder: str) -> None:
    """The other process: work comes in, its steps and then its outcome or an error go out."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # What libraries print must not mix with the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    work = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TorchWork)
    with os.fdopen(answer, "wb") as out:

        def send(frame: _Frame) -> None:
            data = msgspec.msgpack.encode(frame)
            out.write(len(data).to_bytes(_HEAD) + data)
            out.flush()

        worker = CoordinatorWorker(FolderBlobs(Path(folder)), kits=KitCache(), apart=False)
        try:
            outcome = worker.perform(work, lambda step: send(_Step(step)))
        except SojournError as error:
            outcome = _Failure(str(error), isinstance(error, DiskFull))
        send(outcome)


def _end_with_parent(parent: int) -> None:
    """Nobody waits for the answer of a coordinator that is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
