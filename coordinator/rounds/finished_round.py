"""What a finisher's work means for the round that is closed: its model, what is kept, and figures of other models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.rounds.finishing import voters_of
from sojourn.model import vectors
from sojourn.protocol.figure_names import MEAN, TOGETHER, VOTE, VOTERS

if TYPE_CHECKING:
    from coordinator.rounds.evaluation import Evaluator
    from coordinator.rounds.finishing import FinishRound, RoundFinished
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore


class Finish:
    """A round that was finished, and how good the members' models are beside the one that came of it."""

    def __init__(self, work: FinishRound, done: RoundFinished, blobs: BlobStore, evaluator: Evaluator) -> None:
        self._work, self._evaluator, self._blobs = work, evaluator, blobs
        self._spec = evaluator.kit(work.state).model
        self.own: dict[str, Ref] = done.vectors
        """The finisher's own vectors, by the names that the job has for them."""
        self.notes = done.notes
        self.model = vectors.load(blobs, done.model, self._spec)

    def figures(self) -> dict[str, float]:
        """Figures that belong to other models than the job's one, as their names say."""
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
