"""Perform the coordinator's work and report progress; torch runs in a separate process."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from coordinator.job_state import JobState
from coordinator.jobs.model import exported_model
from coordinator.machine.sites import ReadRoster, read_roster
from coordinator.records import JobCompiled
from coordinator.releases.orders import CheckCard, check_card
from coordinator.rounds.closing import PassLeg, close_round, pass_leg
from coordinator.rounds.device_signatures import HopCheck, NodeKeys
from coordinator.rounds.estimation import DeviceTable
from coordinator.rounds.evaluation import Evaluator, MeasureRound, measure_round
from coordinator.rounds.finishing import FinishRound, RoundFinished, finish_round
from coordinator.rounds.planning import PlanRound, plan_round
from coordinator.rounds.preparing import Compiled, KitCache, PrepareJob, prepare
from coordinator.rounds.results import CloseRound
from sojourn.errors import DiskFull, Fault, JobError, SojournError
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.parts import name_of
from sojourn.processes import Child, Parent, full_environment
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore, FolderBlobs, disk_errors, ref_of

REPORT_INTERVAL = 1.0
"""Seconds between two reports of the same step."""


class Steps:
    """Reports steps such as "checking the gradient (3 of 6), 12 s", with the time since the work began."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with each report, from this thread and another one, until the context is left."""
        self._notify = notify
        self._began = time.monotonic()
        self._step = ""
        self._lock = threading.Lock()
        """Held during a report, so that no outdated step is reported after its successor."""
        self._stopped = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop reporting."""
        self._stopped.set()
        if self._ticker:
            self._ticker.join()

    def __call__(self, step: str) -> None:
        """Report a new step."""
        with self._lock:
            self._step = step
            self._report()
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="steps", daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        while not self._stopped.wait(REPORT_INTERVAL):
            with self._lock:
                self._report()

    def _report(self) -> None:
        self._notify(f"{self._step}, {time.monotonic() - self._began:.0f} s")


COMPILE_TIMEOUT = 900.0
"""Maximum seconds to compile a model or make a release of it."""
FINISH_TIMEOUT = 48 * 3600.0
"""Maximum seconds of a finisher: one that trains without a GPU takes hours."""


class ExportModel(msgspec.Struct, frozen=True, tag="export-model"):
    """Export the model that a job had after a round as an ONNX file."""

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
    """Make a release of the model that a job had after a round, as an operator requested."""

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
"""Work that needs torch or onnx."""
_Outcome = JobCompiled | ModelExported | ReleaseBuilt | RoundFinished
_Frame = _Step | _Outcome | _Failure
"""The messages of the other process."""
_FRAME_DECODER: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


class CoordinatorWorker:
    """Performs work in the calling thread.

    folder: where blobs are files that another process can share. kits: the cache of compiled kits; others are compiled
    in another process if `apart`. make: makes the graphs that test models. notify: receives progress reports of long
    work. views: views of exemplars shared with edge servers in this process. keys: the keys with which devices sign.
    """

    def __init__(
        self,
        blobs: BlobStore,
        folder: Path | None = None,
        *,
        kits: KitCache | None = None,
        apart: bool = True,
        make: Callable[[Kit, int], Graphs] = Graphs,
        notify: Callable[[str], None] = lambda _text: None,
        views: ExemplarViews | None = None,
        keys: NodeKeys | None = None,
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._kits, self._in_subprocess = kits, apart
        self._evaluator, self._devices = Evaluator(blobs, make, views), DeviceTable()
        self._notify = notify
        self._keys, self._hops = keys, HopCheck(keys)

    def __call__(self, work: Any, notify: Callable[[str], None] | None = None) -> Any:
        """Perform one piece of work; raises DiskFull if the disk is full, whatever was being written."""
        with Steps(notify or self._notify) as steps:
            return self.perform(work, steps)

    def perform(self, work: Any, notify: Callable[[str], None]) -> Any:
        """Perform one piece of work; `notify` is called with each step as it begins."""
        with disk_errors(f"working ({type(work).__name__})"):
            if self._folder and isinstance(work, TorchWork):
                return _in_subprocess(work, self._folder, notify)
            return self._do(work, notify)

    def _do(self, work: Any, notify: Callable[[str], None]) -> Any:  # noqa: C901  # one short case for each kind of work
        match work:
            case PrepareJob():
                # If torch is not loaded yet, compiling elsewhere saves this process 280 MB.
                separate = self._kits and self._in_subprocess and "torch" not in sys.modules
                return prepare(
                    work,
                    self._blobs,
                    self._kits,
                    (lambda: _compile_in_subprocess(work, notify)) if separate else None,
                    notify,
                )
            case PlanRound():
                return plan_round(work, self._blobs, self._devices)
            case PassLeg():
                return pass_leg(work, self._blobs, self._evaluator, self._hops)
            case CloseRound():
                return close_round(work, self._blobs, self._evaluator, self._hops, partial(self._finish, notify=notify))
            case FinishRound():
                return finish_round(work, self._blobs, notify)
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
                raise Fault(f"unknown kind of work: {type(work).__name__}")

    def _finish(self, work: FinishRound, notify: Callable[[str], None]) -> RoundFinished:
        """Run a finisher, in a separate process if it requires one and blobs are files."""
        notify(f"finishing the round: {name_of(work.state.strategy.finisher)}")
        if not self._folder or not work.state.strategy.finisher.apart:
            return finish_round(work, self._blobs, notify)
        done = _in_subprocess(work, self._folder, notify, FINISH_TIMEOUT)
        assert isinstance(done, RoundFinished)  # noqa: S101  # the only outcome of this work
        return done

    def _export(self, work: ExportModel) -> ModelExported:
        kit = self._evaluator.kit(work.state)
        vector = vectors.load(self._blobs, work.state.models[work.round], kit.model)
        data, accuracy = exported_model(kit, vector), work.state.accuracy(work.round)
        if work.state.evaluation_pending and work.round == len(work.state.history):  # its metrics are not ready yet
            accuracy = self._evaluator.evaluate(work.state, vector).accuracy
        return ModelExported(work.ticket, work.operator, self._keep(data), accuracy, work.round)

    def _release(self, work: BuildRelease) -> ReleaseBuilt:
        from coordinator.releases.making import from_job  # noqa: PLC0415  # load torch and onnx only when needed

        kit = self._evaluator.kit(work.state)
        vector = vectors.load(self._blobs, work.state.models[work.round], kit.model)
        test = unpack_blob(self._blobs.read(work.state.test.digest), Exemplars) if work.state.test else None
        made = from_job(work.state, work.asked, kit, vector, self._evaluator.exemplars(work.state), test, work.round)
        return ReleaseBuilt(work.ticket, work.operator, self._keep(made.graph), self._keep(made.card_bytes))

    def _keep(self, data: bytes) -> Ref:
        ref = ref_of(data)
        self._blobs.put(data, ref.digest)
        return ref


def _in_subprocess(
    work: TorchWork, folder: Path, notify: Callable[[str], None], timeout: float | None = None
) -> _Outcome:
    """Do work with torch in another process, which frees its memory and keeps a faulty model from crashing the service.

    That process also searches this folder for a custom model, after everything else, so that no file shadows a module.
    """
    timeout = COMPILE_TIMEOUT if timeout is None else timeout
    outcome = None
    with Child(
        "coordinator.machine.work", _FRAME_DECODER, str(folder), env=full_environment(""), timeout=timeout
    ) as child:
        child.send(work)
        for frame in child.frames():
            if isinstance(frame, _Step):
                notify(frame.text)
            else:
                outcome = frame
        status = child.reap()
    if child.timed_out and outcome is None:
        raise JobError(f"the work on the model exceeded its time limit of {timeout / 60:g} minutes")
    if status or outcome is None:
        raise JobError(f"the work on the model {child.ending()}: see the coordinator's log")
    if isinstance(outcome, _Failure):
        raise DiskFull(outcome.error) if outcome.disk_full else JobError(outcome.error)
    return outcome


def _compile_in_subprocess(work: PrepareJob, notify: Callable[[str], None]) -> Compiled:
    """Compile a job in another process."""
    with tempfile.TemporaryDirectory(prefix="sojourn-kit-") as folder:
        made = _in_subprocess(msgspec.structs.replace(work, start=None), Path(folder), notify)  # start is applied here
        assert isinstance(made, JobCompiled)  # noqa: S101  # the only outcome of this work
        assert made.initial is not None  # noqa: S101
        blobs = FolderBlobs(Path(folder))
        kit = unpack_blob(blobs.read(made.kit.digest), Kit)
        return kit, vectors.load(blobs, made.initial, kit.model)


def main(folder: str) -> None:
    """The other process: receives work, and sends its steps and then its outcome or an error."""
    coordinator = Parent(msgspec.msgpack.Decoder(TorchWork))
    work = next(coordinator.frames)
    coordinator.exit_with_parent()
    worker = CoordinatorWorker(FolderBlobs(Path(folder)), kits=KitCache(), apart=False)
    try:
        outcome = worker.perform(work, lambda step: coordinator.send(_Step(step)))
    except SojournError as error:
        outcome = _Failure(str(error), isinstance(error, DiskFull))
    coordinator.send(outcome)


if __name__ == "__main__":
    main(sys.argv[1])
