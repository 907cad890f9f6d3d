"""Finish a round: run the strategy's finisher on all members' models, and apply its result to the round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coordinator.finishers.finishing import finish
from coordinator.finishers.task import FLOAT32, FinishTask, Load, MemberModel, State
from coordinator.job_state import JobState
from coordinator.records import TourPlan
from coordinator.rounds.results import reported_refs, tour_model
from sojourn.errors import JobError
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.vectors import flat, spec_of_vector
from sojourn.parts import Finisher, NoFinisher
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.metric_names import MEAN, TOGETHER, VOTE, VOTERS
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref, VisitReport
from sojourn.randomness import derive
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from coordinator.rounds.evaluation import Evaluator


FINISHER, VOTER = "finisher-", "voter-"
"""Prefixes of the job's vectors that belong to its finisher, and of the models that vote."""
MAX_VOTERS = 1000


class MemberRef(msgspec.Struct, frozen=True):
    """A model from a tour, exact, with the other vectors that its device reported."""

    name: str
    samples: float
    model: Ref
    reported: dict[str, Ref] = {}


class FinishRound(msgspec.Struct, frozen=True, tag="finish-round"):
    """Run the job's finisher on all models of a round; `mean` is the aggregator's model."""

    state: JobState
    members: tuple[MemberRef, ...]
    mean: Ref


class RoundFinished(msgspec.Struct, frozen=True, tag="round-finished"):
    """The round's model and the finisher's vectors, by their names in the job; all are in the blob folder."""

    model: Ref
    vectors: dict[str, Ref]
    notes: tuple[str, ...] = ()


def own_vectors(state: JobState) -> dict[str, Ref]:
    """Return those of a job's vectors that belong to its finisher; their lengths are not the model's."""
    sends = state.strategy.finisher.sends
    return {name: ref for name, ref in state.vectors.items() if name in sends or name.startswith((FINISHER, VOTER))}


def member_of(  # all that is known of it
    state: JobState, tour: TourPlan, reports: Iterable[VisitReport], samples: float, blobs: BlobStore, kit: Kit
) -> MemberRef:
    """Return a tour's model under the name of its last device; an exact model is not stored twice."""
    done = [report.device for report in reports if report.status == "done"]
    ref = state.arrived[tour.number].vectors["model"]
    if ref.delta or ref.encoding != "float32":
        model = tour_model(state, tour, blobs, kit)
        assert model is not None  # noqa: S101  # the tour has a model
        ref = vectors.save(blobs, model, "float32", kit.model)
    return MemberRef((done or tour.hops)[-1], samples, ref, reported_refs(state, tour))


def finish_round(
    work: FinishRound, blobs: BlobStore, notify: Callable[[str], None] = lambda _step: None
) -> RoundFinished:
    """Run the finisher on the members in plan order; only its result is kept."""
    state, finisher = work.state, work.state.strategy.finisher
    if state.kit is None or isinstance(finisher, NoFinisher):
        raise JobError(f"job {state.name!r} has nothing to finish a round with")
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    kept = {name: ref for name, ref in own_vectors(state).items() if not name.startswith(VOTER)}
    task = FinishTask(
        [_member(each, state, kit, blobs) for each in work.members],
        vectors.load(blobs, work.mean, kit.model),
        kit,
        state.settings,
        derive(state.settings.seed, "finish", state.round),
        state.round,
        {name.removeprefix(FINISHER): load_flat(blobs, ref) for name, ref in kept.items()},
        unpack_blob(blobs.read(state.exemplars.digest), Exemplars) if state.exemplars else None,
        state.normalisation,
        notify,
    )
    done = finish(finisher, task)
    kept |= save_state(done.state, finisher, blobs)
    if done.voters:
        kept |= {f"{VOTER}{number}": each.model for number, each in enumerate(work.members[:MAX_VOTERS])}
    model = work.mean if done.model is None else vectors.save(blobs, done.model, "float32", kit.model)
    return RoundFinished(model, kept, done.notes)


def save_state(state: State, finisher: Finisher, blobs: BlobStore) -> dict[str, Ref]:
    """Store a finisher's vectors under the names that the job uses for them."""
    return {
        name if name in finisher.sends else FINISHER + name: vectors.save(blobs, vector, "float32", flat(len(vector)))
        for name, vector in state.items()
    }


def voters_of(held: Mapping[str, Ref]) -> list[Ref]:
    """Return the models that vote, in plan order; none if the result is one model."""
    numbers = sorted(int(name.removeprefix(VOTER)) for name in held if name.startswith(VOTER))
    return [held[f"{VOTER}{number}"] for number in numbers]


def load_flat(blobs: BlobStore, ref: Ref) -> vectors.Vector:
    """Load a vector whose length is not the model's."""
    return vectors.load(blobs, ref, flat(ref.size // FLOAT32))


def _member(each: MemberRef, state: JobState, kit: Kit, blobs: BlobStore) -> MemberModel:
    objective = state.strategy.objective
    reported: dict[str, Load] = {
        name: partial(vectors.load, blobs, ref, spec_of_vector(name, objective, kit))
        for name, ref in each.reported.items()
    }
    return MemberModel(each.name, each.samples, partial(vectors.load, blobs, each.model, kit.model), reported)


class Finish:
    """The result of a finished round, with metrics of the members' models for comparison."""

    def __init__(self, work: FinishRound, done: RoundFinished, blobs: BlobStore, evaluator: Evaluator) -> None:
        self._work, self._evaluator, self._blobs = work, evaluator, blobs
        self._spec = evaluator.kit(work.state).model
        self.own: dict[str, Ref] = done.vectors
        """The finisher's vectors, by the names that the job uses for them."""
        self.notes = done.notes
        self.model = vectors.load(blobs, done.model, self._spec)

    def metrics(self) -> dict[str, float]:
        """The metrics of models other than the job's, as their names show."""
        state = self._work.state
        if state.test is None:
            return {}
        if voters := voters_of(self.own):
            vote = self._evaluator.vote(state, voters, getattr(state.strategy.finisher, "most", 0))
            return {f"{VOTE}accuracy": vote.accuracy, f"{VOTE}loss": vote.loss, VOTERS: float(len(voters))}
        if not state.strategy.finisher.compares or state.settings.task.kind != "classification":
            return {}
        together = self._evaluator.together(state, [each.model for each in self._work.members])
        mean = self._evaluator.evaluate(state, vectors.load(self._blobs, self._work.mean, self._spec))
        return {f"{TOGETHER}accuracy": together.accuracy, f"{MEAN}accuracy": mean.accuracy}
