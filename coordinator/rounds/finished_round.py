"""What a finisher's work means for the round that is closed: its model, what is kept, and whose figures are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.rounds.finishing import voters_of
from sojourn.model import vectors

if TYPE_CHECKING:
    from coordinator.rounds.evaluation import Evaluator
    from coordinator.rounds.finishing import FinishRound, RoundFinished
    from sojourn.model.scoring import Scores
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore


class Finish:
    """A round that was finished, and how good what came of it is."""

    def __init__(self, work: FinishRound, done: RoundFinished, blobs: BlobStore, evaluator: Evaluator) -> None:
        self._work, self._evaluator = work, evaluator
        self._spec = evaluator.kit(work.state).model
        self.own: dict[str, Ref] = done.vectors
        """The finisher's own vectors, by the names that the job has for them."""
        self.notes = done.notes
        self.model = vectors.load(blobs, done.model, self._spec)
        self._blobs = blobs

    def tested(self, model: Scores) -> tuple[Scores, list[str]]:
        """The figures that the round tells, and lines beside them; `model` are those of the finisher's model.

        Of a vote they are the vote's: the model is what learnt from it, and stands in a line.
        """
        if voters := voters_of(self.own):
            vote = self._evaluator.together(self._work.state, voters, "probabilities")
            text = f"accuracy and loss are those of a vote of {len(voters)} models; the one that learnt from them, "
            return vote, [f"{text}which can be exported and released, is {model.accuracy:.1%} accurate"]
        return model, self._compared() if self._work.state.strategy.finisher.compares and self._work.state.test else []

    def _compared(self) -> list[str]:
        """How good the members' mean is, and what they say together, beside what the finisher made of them."""
        state, members = self._work.state, [each.model for each in self._work.members]
        together = self._evaluator.together(state, members, "logits").accuracy
        mean = self._evaluator.evaluate(state, vectors.load(self._blobs, self._work.mean, self._spec)).accuracy
        return [f"of {len(members)} models, the mean is {mean:.1%} accurate, and what they say together {together:.1%}"]
