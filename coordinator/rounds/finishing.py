"""Finishing a round: what the strategy's finisher makes of all members' models. Work on blobs, in any process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coordinator.finishers.finishing import finish
from coordinator.finishers.task import FinishTask, MemberModel
from coordinator.rounds.results import told_by, tour_model
from coordinator.state import JobState
from sojourn.errors import JobError
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.lengths import flat, spec_of_vector
from sojourn.parts import Finisher, NoFinisher
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coordinator.finishers.task import Load, State
    from coordinator.records import TourPlan
    from sojourn.protocol.wire import VisitReport
    from sojourn.store.blobs import BlobStore

FINISHER, VOTER = "finisher-", "voter-"
"""How the names begin of the job's vectors that are a finisher's own, and of the models that vote."""
MOST_VOTERS = 1000
FLOAT32 = 4


class MemberRef(msgspec.Struct, frozen=True):
    """A model that came home, exact, and what its device told besides."""

    name: str
    samples: float
    model: Ref
    told: dict[str, Ref] = {}


class FinishRound(msgspec.Struct, frozen=True, tag="finish-round"):
    """All models of a round are here: make of them what the job's finisher makes. `mean` is the aggregator's model."""

    state: JobState
    members: tuple[MemberRef, ...]
    mean: Ref


class RoundFinished(msgspec.Struct, frozen=True, tag="round-finished"):
    """The round's model and the finisher's own vectors, as a job's vectors are named; all are in the blob folder."""

    model: Ref
    vectors: dict[str, Ref]
    notes: tuple[str, ...] = ()


def is_finishers(name: str, finisher: Finisher) -> bool:
    """Whether one of the job's vectors is its finisher's own: then it has a length of its own."""
    return name in finisher.sends or name.startswith((FINISHER, VOTER))


def own_vectors(state: JobState) -> dict[str, Ref]:
    """Those of a job's vectors that are its finisher's own."""
    return {name: ref for name, ref in state.vectors.items() if is_finishers(name, state.strategy.finisher)}


def member_of(  # all that is known of it
    state: JobState, tour: TourPlan, reports: Iterable[VisitReport], samples: float, blobs: BlobStore, kit: Kit
) -> MemberRef:
    """The model that a tour brought home, by the device that trained it last; what came exactly is not kept twice."""
    done = [report.device for report in reports if report.status == "done"]
    ref = state.arrived[tour.number].vectors["model"]
    if ref.delta or ref.encoding != "float32":
        model = tour_model(state, tour, blobs, kit)
        assert model is not None  # noqa: S101  # it has one
        ref = vectors.save(blobs, model, "float32", kit.model)
    return MemberRef((done or tour.hops)[-1], samples, ref, told_by(state, tour))


def finish_round(work: FinishRound, blobs: BlobStore, say: Callable[[str], None] = lambda _step: None) -> RoundFinished:
    """Let the finisher work on the members in plan order; nothing of it is kept but what it came to."""
    state, finisher = work.state, work.state.strategy.finisher
    if state.kit is None or isinstance(finisher, NoFinisher):
        raise JobError(f"job {state.name!r} has nothing to finish a round with")
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    held = own_vectors(state)
    task = FinishTask(
        [_member(each, state, kit, blobs) for each in work.members],
        vectors.load(blobs, work.mean, kit.model),
        kit,
        state.settings,
        derive(state.settings.seed, "finish", state.round),
        state.round,
        {_plain(name): load_flat(blobs, ref) for name, ref in held.items() if not name.startswith(VOTER)},
        unpack_blob(blobs.read(state.exemplars.digest), Exemplars) if state.exemplars else None,
        state.normalisation or None,
        say,
    )
    done = finish(finisher, task)
    kept = {name: ref for name, ref in held.items() if not name.startswith(VOTER)}
    kept |= save_state(done.state, finisher, blobs)
    if done.voters:
        kept |= {f"{VOTER}{number}": each.model for number, each in enumerate(work.members[:MOST_VOTERS])}
    model = work.mean if done.model is None else vectors.save(blobs, done.model, "float32", kit.model)
    return RoundFinished(model, kept, done.notes)


def save_state(state: State, finisher: Finisher, blobs: BlobStore) -> dict[str, Ref]:
    """Keep a finisher's vectors, under the names that the job has for them."""
    return {
        name if name in finisher.sends else FINISHER + name: vectors.save(blobs, vector, "float32", flat(len(vector)))
        for name, vector in state.items()
    }


def voters_of(held: Mapping[str, Ref]) -> list[Ref]:
    """The models that vote, in plan order; none where the result is one model."""
    numbers = sorted(int(name.removeprefix(VOTER)) for name in held if name.startswith(VOTER))
    return [held[f"{VOTER}{number}"] for number in numbers]


def load_flat(blobs: BlobStore, ref: Ref) -> vectors.Vector:
    """A vector of the coordinator's own that has a length of its own."""
    return vectors.load(blobs, ref, flat(ref.size // FLOAT32))


def _member(each: MemberRef, state: JobState, kit: Kit, blobs: BlobStore) -> MemberModel:
    objective = state.strategy.objective
    told: dict[str, Load] = {
        name: partial(vectors.load, blobs, ref, spec_of_vector(name, objective, kit)) for name, ref in each.told.items()
    }
    return MemberModel(each.name, each.samples, partial(vectors.load, blobs, each.model, kit.model), told)


def _plain(name: str) -> str:
    return name.removeprefix(FINISHER)
