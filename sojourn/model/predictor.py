"""Predicts with a graph that takes `x` and gives answers, and with a release: a graph that keeps to its card."""

from __future__ import annotations

from math import nan, prod
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError, ModelError
from sojourn.model.answers import SCORE, Answer, figures_of, given_by, tally
from sojourn.model.metrics import added
from sojourn.model.session import REFUSED, first_line, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime
    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.model.metrics import Tally
    from sojourn.protocol.release import Card
    from sojourn.protocol.task import TaskSpec

BATCH = 256
"""Rows at a time: the memory that a test set takes does not grow with it."""
_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class Predictor:
    """A prediction graph on this machine; safe to use from many threads."""

    def __init__(
        self, graph: bytes, name: str = "the graph", threads: int = 1, gives: tuple[str, ...] = ("logits",)
    ) -> None:
        """Run a graph whose results are called as `gives` says: answers, and scores if there are any."""
        self.name, self._gives = name, list(gives)
        self.session = open_session(graph, session_options(threads), name)

    def answer(self, x: NDArray[np.generic]) -> Answer:
        """The answers for rows in the graph's shape and type."""
        try:
            if len(x) <= BATCH:
                return self._run(x)
            parts = [self._run(x[at : at + BATCH]) for at in range(0, len(x), BATCH)]
        except (*REFUSED, ValueError) as error:  # ValueError: there is no such input or output
            raise ModelError(f"onnxruntime does not run {self.name}: {first_line(error)}") from error
        scores = [part.scores for part in parts if part.scores is not None]
        return Answer(np.concatenate([part.outputs for part in parts]), np.concatenate(scores) if scores else None)

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The same without scores: a classifier's logits, or what another task answers."""
        return self.answer(x).outputs

    def figures(self, samples: Exemplars, task: TaskSpec) -> dict[str, float]:
        """How good the answers are, the task's main figure first."""
        x, y = samples.packed()
        faulty, compared = samples.marked(), samples.compared()
        if task.kind == "reconstruction":
            compared = np.zeros(len(y), np.int64) if faulty is None else faulty.astype(np.int64)
        total: Tally = {}
        for at in range(0, len(y), BATCH):
            rows = samples.unpacked(x[at : at + BATCH])
            total = added(total, tally(task, self.answer(rows), rows, compared[at : at + BATCH]))
        return figures_of(task, total)

    def _run(self, x: NDArray[np.generic]) -> Answer:
        return Answer(*self.session.run(self._gives, {"x": x}))


class ReleasePredictor(Predictor):
    """Predicts with one release; made only of a graph that takes and gives what its card says."""

    def __init__(self, graph: bytes, card: Card, threads: int = 1) -> None:
        super().__init__(graph, f"release {card.version} of {card.line}", threads, given_by(card.learns))
        self.card = card
        self.shape = card.input.shape
        self.dtype = np.dtype(card.input.dtype)
        if wrong := _disagreement(card, self.session):
            raise ModelError(f"the graph of {self.name} is not what its card says: {wrong}")

    def check_probe(self) -> None:
        """Refuse a release whose answers here are not those that came with it."""
        card, probe = self.card, self.card.probe
        shape = (probe.rows, *card.learns.output)
        there = np.frombuffer(probe.logits, dtype="<f4")
        if probe.rows < 1 or there.size != prod(shape):
            raise ModelError(f"the card of {self.name} has no answers that could be compared")
        here, scores = self.answer(probe_rows(card))
        name = card.learns.answers
        if here.shape != shape:
            raise ModelError(f"{self.name} gives {name} of shape {here.shape} instead of {shape}")
        self._compare(here, there.reshape(shape), probe.atol, "answers")
        if scores is not None:
            self._check_scores(scores)

    def _check_scores(self, here: NDArray[np.float32]) -> None:
        rows, told = self.card.probe.rows, self.card.probe.scores
        there = np.frombuffer(told.values, dtype="<f4") if told else np.zeros(0, np.float32)
        if there.size != rows or not told or not self.card.anomaly:
            raise ModelError(f"the card of {self.name} has no scores that could be compared, or no threshold for them")
        if here.shape != (rows,):
            raise ModelError(f"{self.name} gives scores of shape {here.shape} instead of {(rows,)}")
        self._compare(here, there, told.atol, "scores")

    def _compare(self, here: NDArray[np.float32], there: NDArray[np.float32], most: float, what: str) -> None:
        apart = np.abs(here.astype(np.float64) - there)
        # Written as "not within", so that a NaN disagrees too.
        if not (apart <= most).all():
            furthest = nan if np.isnan(apart).any() else float(apart.max())
            raise ModelError(
                f"the {what} of {self.name} differ here by up to {furthest:.3g} from those that came with it, "
                f"where {most:.3g} is allowed"
            )

    def typed(self, given: NDArray[np.generic]) -> NDArray[np.generic]:
        """Rows in the type that the graph takes."""
        if given.dtype.kind not in "buif":
            raise DataError(f"{self.card.line} takes numbers, not values of type {given.dtype}")
        if given.dtype.kind == "f" and self.dtype.kind == "i" and not np.array_equal(given, np.trunc(given)):
            raise DataError(f"{self.card.line} takes whole numbers, not {given.dtype} with fractions")
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(given, dtype=self.dtype)


def probe_rows(card: Card) -> NDArray[np.generic]:
    """The rows that came with a card."""
    dtype = np.dtype(card.input.dtype)
    flat = np.frombuffer(card.probe.x, dtype=dtype.newbyteorder("<")).astype(dtype)
    try:
        return flat.reshape(card.probe.rows, *card.input.shape)
    except ValueError:
        raise ModelError(f"the card of release {card.version} of {card.line} has inputs of another size") from None


def _disagreement(card: Card, session: onnxruntime.InferenceSession) -> str | None:
    takes, gives = session.get_inputs(), {output.name: output for output in session.get_outputs()}
    if [each.name for each in takes] != ["x"]:
        return f"it takes {', '.join(each.name for each in takes) or 'nothing'} instead of x"
    for name in (names := given_by(card.learns)):
        if name not in gives:
            return f"it gives {', '.join(gives)} instead of {' and '.join(names)}"
        if gives[name].type != "tensor(float)":
            return f"its {name} {'is' if name == SCORE else 'are'} a {gives[name].type} instead of float32"
    if takes[0].type != _TYPES[card.input.dtype]:
        return f"it takes a {takes[0].type} instead of {card.input.dtype}"
    shapes = zip(names, (card.learns.output, ()), strict=False)
    for what, found, sample in (
        ("takes samples", takes[0].shape, card.input.shape),
        *((f"gives {name}", gives[name].shape, shape) for name, shape in shapes),
    ):
        if not _fits(found, sample):
            return f"it {what} of shape {found} instead of rows of {list(sample)}"
    return None


def _fits(found: list[int | str | None], sample: tuple[int, ...]) -> bool:
    """Whether a graph's shape is any number of rows of a sample's; what it leaves open fits."""
    if not found:  # it tells nothing: the probe shows
        return True
    if len(found) != 1 + len(sample) or isinstance(found[0], int):
        return False
    return all(size == wanted for size, wanted in zip(found[1:], sample, strict=True) if isinstance(size, int))
