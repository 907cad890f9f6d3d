"""From a job file to what its devices need: data, model and compiled graphs, checked. The one place that runs torch."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.aggregators.aggregating import first_state
from coordinator.finishers import finishing
from coordinator.jobs.data import public_data
from coordinator.jobs.model import answers_of, job_learning, job_model
from coordinator.jobs.settings import TORCHVISION, read_job
from coordinator.records import JobCompiled
from coordinator.rounds.closing import handouts
from coordinator.rounds.failure_lines import within_room
from coordinator.rounds.finishing import save_state
from coordinator.rounds.starting import StartModel, earlier_weights, started
from sojourn import __version__
from sojourn.errors import InvalidBlob, InvalidMessage, JobError
from sojourn.model import vectors
from sojourn.model.classifier import classifier_weights
from sojourn.model.output_bias import check_output_bias
from sojourn.model.workload import training_size
from sojourn.parts import ClassifierEstimator, Echo, Generated, LogitAdjustment, Outliers, TwoStreamPart, name_of
from sojourn.protocol.abilities import asked_by
from sojourn.protocol.envelope import pack_blob, unpack_blob
from sojourn.protocol.mandate_messages import Normalisation
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from coordinator.jobs.data import PublicData
    from coordinator.jobs.model import EarlierWeights
    from coordinator.jobs.settings import JobSettings
    from coordinator.rounds.kit_cache import KitCache
    from coordinator.state import CoordinatorState
    from sojourn.parts import Estimator
    from sojourn.protocol.task import TaskSpec
    from sojourn.store.blobs import BlobStore

    Compiled = tuple[Kit, NDArray[np.float32]]
    """A kit, and the model that it starts from."""

log = logging.getLogger(__name__)
MOST_NUMBERS = 4096
"""As many as `messages.Visited.signature` can carry."""


class Recipe(msgspec.Struct, frozen=True):
    """What came of a recipe: a kit, and the model that it starts from."""

    kit: Ref
    initial: Ref


class PrepareJob(msgspec.Struct, frozen=True, tag="prepare-job"):
    """Compile a job's model and read its data."""

    name: str
    text: str
    known: dict[str, Recipe] = {}
    """What earlier jobs compiled, by recipe: strategies are compared on one model, and compiling takes seconds."""
    start: StartModel | None = None
    """The model of an earlier job, where this one starts from it."""


def recipes(durable: CoordinatorState) -> dict[str, Recipe]:
    """What earlier jobs compiled."""
    return {
        state.recipe: Recipe(state.kit, state.initial)
        for state in durable.jobs.values()
        if state.recipe and state.kit and state.initial
    }


def prepare(
    work: PrepareJob,
    blobs: BlobStore,
    kits: KitCache | None = None,
    apart: Callable[[], Compiled] | None = None,
    say: Callable[[str], None] = lambda _step: None,
) -> JobCompiled:
    """Read, build, compile, check; everything that came of it is in the blob folder.

    A kit that `kits` has is taken from there; `apart` compiles one that is to be kept there, in another process.
    `say` is told each step as it begins, in words.
    """
    say("reading the data")
    job = read_job(work.text, work.name)
    data = public_data(job)
    notices = [*data.odd, *(f"left out of the job's test set and exemplars: {text}" for text in data.skipped)]
    for text in notices:
        log.warning("%s: %s", job.name, text)
    earlier = earlier_weights(job, work.start, blobs) if work.start else None
    recipe = recipe_of(job, data) if earlier is None else ""
    found = _recalled(work.known.get(recipe), blobs) or (kits.find(recipe) if kits and recipe else None)
    kit, initial = found or (apart() if apart and recipe else _compiled(job, data, say, earlier))
    if kits and recipe and not found:
        kits.keep(recipe, kit, initial)
    # What is not of the model: a kit that was kept may be of other data.
    kit = msgspec.structs.replace(
        kit, values=data.values, task=_task(kit, data) or msgspec.UNSET, table=data.table or msgspec.UNSET
    )
    check_classifier(job.parts().estimator, kit)
    if isinstance(job.parts().objective, LogitAdjustment) and not kit.task:
        check_output_bias(kit)
    finishing.check_kit(job.parts().finisher, kit)
    if work.start and earlier is None:
        initial, recipe = started(work.start, kit, blobs), ""  # no other job is to begin with this model by its recipe
    held, handout = first_vectors(initial, job, blobs, kit)
    return JobCompiled(
        work.name,
        _keep(blobs, kit),
        held,
        handout,
        _keep(blobs, data.exemplars) if data.exemplars else None,
        _keep(blobs, data.test) if data.test else None,
        recipe,
        vectors.save(blobs, initial, "float32", kit.model),
        kit.learns.strata.count,
        within_room(notices, work.name) or msgspec.UNSET,
        asked_by(kit) or msgspec.UNSET,
        _normalisation(data),
        training_size(kit),
    )


def recipe_of(job: JobSettings, data: PublicData) -> str:
    """All that a compiled kit depends on; empty for a model of one's own, whose code may have changed meanwhile."""
    if job.model.own or job.task.own_loss:
        return ""
    made_by = [version(each) for each in ("torch", "onnx", "onnxscript")]
    if job.model.name.startswith(TORCHVISION) and find_spec("torchvision"):
        made_by.append(version("torchvision"))
    if job.model.start_file:
        made_by.append(_digest(job.model.start_file))
    model = msgspec.structs.replace(job.model, start=None, source="", licence="")
    settings: list[object] = [model, data.input, data.classes, data.mean, data.std, job.seed, __version__]
    settings += [made_by, _sources()]
    if data.task:
        task = data.task
        settings += [task.kind, task.output, task.target, task.loss, task.window, data.scaling]
    if objective := _second_stream(job):
        settings += [objective]
    settings += _more_graphs(job)
    return hashlib.sha256(msgspec.msgpack.encode(settings)).hexdigest()


def _outliers(job: JobSettings) -> Outliers | None:
    """The objective, where models have one more answer."""
    objective = job.parts().objective
    return objective if isinstance(objective, Outliers) else None


def _more_graphs(job: JobSettings) -> list[object]:
    """The objective, where the kit needs further graphs for it; such a kit is in one piece."""
    objective = job.parts().objective
    if not isinstance(objective, Echo | Outliers | Generated):
        return []
    if job.model.names_frozen:
        raise JobError(
            f"the objective {name_of(objective)} works on whole models, and this job does not train all tensors: leave "
            "model.trains out"
        )
    return [objective if isinstance(objective, Outliers) else name_of(objective)]


def _second_stream(job: JobSettings) -> TwoStreamPart | None:
    """The objective, where the kit needs a graph for it: with the settings that are written into that graph."""
    objective = job.parts().objective
    return objective.compiled if isinstance(objective, TwoStreamPart) else None


@cache
def _sources() -> bytes:
    """A hash of the code that kits come from: whoever changes it gets new ones."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in _source_files())).digest()


def _source_files() -> list[Path]:
    package = Path(__file__).parents[1]
    return sorted((*(package / "compiling").glob("*.py"), *(package / "models").glob("*.py")))


def _digest(name: str) -> str:
    """By what a file with weights is known: one with other content is another."""
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise JobError(f"model.start: {name} cannot be read on this machine: {error.strerror or error}") from error


def _compiled(
    job: JobSettings, data: PublicData, say: Callable[[str], None], earlier: EarlierWeights | None = None
) -> Compiled:
    say("loading torch")
    from coordinator.compiling import compile_kit  # noqa: PLC0415  # torch takes seconds and 280 MB
    from coordinator.compiling.sharing import with_shared_weights  # noqa: PLC0415

    module = job_model(job, data.input, answers_of(job, data.output), earlier)
    learning = job_learning(job, data)
    compiled = compile_kit(
        module,
        data.input,
        data.classes,
        mean=data.mean,
        std=data.std,
        seed=job.seed,
        batch=job.parts().training.batch,
        batchnorm=job.model.batchnorm,
        whole=job.model.trunk == "whole" or bool(_more_graphs(job)),
        learning=learning,
        objective=_second_stream(job),
        taps=isinstance(job.parts().objective, Echo),
        outliers=_outliers(job),
        soft=isinstance(job.parts().objective, Generated),
        report=say,
    )
    kit = with_shared_weights(compiled.kit, module) if job.model.names_frozen else compiled.kit
    if learning and learning.own and data.exemplars:
        from coordinator.compiling.own_losses import blind_loss  # noqa: PLC0415  # see above

        task = msgspec.structs.replace(learning.task, blind=blind_loss(learning, data.exemplars))
        kit = msgspec.structs.replace(kit, task=task)
    return kit, compiled.initial


def _normalisation(data: PublicData) -> Normalisation:
    """The constants of a kit that come from the job's data."""
    return Normalisation(data.mean, data.std, *(data.scaling or ()))


def compiled_here(job: JobSettings, data: PublicData, say: Callable[[str], None]) -> Kit:
    """What a job compiles to in this process, whatever was compiled before."""
    kit, _ = _compiled(job, data, say)
    return kit


def _task(kit: Kit, data: PublicData) -> TaskSpec | None:
    """The task with the strata of the job's own data; what a loss of one's own makes of it was found by torch."""
    if data.task is None or not kit.task:
        return data.task
    return msgspec.structs.replace(data.task, blind=kit.task.blind) if ":" in data.task.loss else data.task


def _recalled(known: Recipe | None, blobs: BlobStore) -> Compiled | None:
    """What an earlier job compiled, if it is still there."""
    if known is None or not (blobs.has(known.kit.digest) and blobs.has(known.initial.digest)):
        return None
    try:
        kit = unpack_blob(blobs.read(known.kit.digest), Kit)
        return kit, vectors.load(blobs, known.initial, kit.model)
    except (InvalidBlob, InvalidMessage):
        return None


def first_vectors(
    initial: NDArray[np.float32], job: JobSettings, blobs: BlobStore, kit: Kit
) -> tuple[dict[str, Ref], dict[str, Ref]]:
    """The job's vectors before the first round, and how they travel down: its model, and what its parts keep."""
    strategy = job.parts()
    held = {"model": initial, **first_state(strategy.aggregator, len(initial))}
    exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in held.items()}
    exact |= save_state(finishing.first_state(strategy, kit, job.seed), strategy.finisher, blobs)
    return exact, handouts(held, exact, strategy, job, blobs, kit)


def check_classifier(estimator: Estimator, kit: Kit) -> None:
    """Whether this model's fully connected layers can describe a device; JobError if they cannot."""
    if not isinstance(estimator, ClassifierEstimator):
        return
    numbers = len(classifier_weights(kit, np.zeros(kit.model.size, np.float32), estimator.layers))
    if estimator.where == "device" and numbers > MOST_NUMBERS:
        raise JobError(
            f"the classifier of this model has {numbers} numbers, and a device can tell {MOST_NUMBERS}: "
            f'choose estimator.layers = "last" or estimator.where = "server"'
        )


def _keep(blobs: BlobStore, value: object) -> Ref:
    content = pack_blob(value)
    ref = ref_of(content)
    blobs.put(content, ref.digest)
    return ref
