"""Predictions of a graph, a release or a fused model: probabilities, values, tokens or anomaly scores."""

from __future__ import annotations

from copy import copy
from math import nan, prod
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import DataError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.model.metrics import Tally, added, metrics, softmax, tallied
from sojourn.model.session import RUNTIME_ERRORS, first_line, open_session, session_options
from sojourn.model.strata import numbers, places
from sojourn.protocol.release import Card
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import TaskSpec

if TYPE_CHECKING:
    import onnxruntime

    Floats = NDArray[np.float32]


# For drift detection, each prediction belongs to a group: its class; the most likely label, or none; the stratum of a
# value; whether a score is above the threshold; the next token.

SCORE = "score"
"""The output with the anomaly scores of a reconstruction."""


class BatchOutput(NamedTuple):
    """The outputs of a graph for a batch, a row for each sample, and the anomaly scores of a reconstruction."""

    outputs: Floats
    scores: Floats | None = None


def output_names(task: TaskSpec) -> tuple[str, ...]:
    """Return the output names of a release's prediction graph."""
    return (task.answers, SCORE) if task.kind == "reconstruction" else (task.answers,)


def groups(task: TaskSpec, answer: BatchOutput, threshold: float = np.inf) -> NDArray[np.int64]:
    """Return the group of each prediction."""
    outputs = answer.outputs
    match task.kind:
        case "classification":
            return np.asarray(outputs.argmax(axis=1))
        case "multilabel":
            return np.asarray(np.where((outputs > 0).any(axis=1), outputs.argmax(axis=1), outputs.shape[1]))
        case "tokens":
            return np.asarray(outputs[:, -1].argmax(axis=-1))
        case "reconstruction":
            return np.asarray(scores_of(answer) > threshold, np.int64)
        case _:
            return places(task.strata, numbers(task, outputs, outputs))


def tally(task: TaskSpec, answer: BatchOutput, x: NDArray[np.generic], y: NDArray[np.generic]) -> Tally:
    """Return the tally of these predictions; for a reconstruction, y is 1 for faulty samples."""
    kind, outputs = task.kind, answer.outputs
    if kind == "reconstruction":
        return tallied(kind, outputs, x, scores_of(answer), y.astype(np.bool_) if y.any() else None)
    losses = _token_losses(outputs, y) if kind == "tokens" else np.zeros(len(outputs))
    return tallied(kind, outputs, y, losses)


def metrics_of(task: TaskSpec, tally: Tally) -> dict[str, float]:
    """Return a release's metrics, the main one first; only a reconstruction has a loss."""
    found = metrics(task.kind, tally)
    return found if task.kind == "reconstruction" else {name: found[name] for name in found if name != "loss"}


def scores_of(answer: BatchOutput) -> Floats:
    """Return the anomaly scores of a reconstruction."""
    if answer.scores is None:
        raise ValueError("the output has no anomaly scores")
    return answer.scores


def score_threshold(scores: NDArray[np.floating], quantile: float) -> float:
    """Return the score that this share of all scores does not exceed."""
    return float(np.quantile(scores.astype(np.float64), quantile, method="higher"))


def _token_losses(outputs: Floats, y: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the mean cross-entropy over the tokens of each sequence."""
    chances = np.take_along_axis(softmax(outputs), y.astype(np.int64)[..., np.newaxis], axis=-1)
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = -np.log(chances[..., 0]).reshape(len(y), -1).mean(axis=1)
    return found


BATCH = 256
"""Rows per run, so that memory does not grow with the test set."""
_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class Predictor:
    """A prediction graph on this machine; thread-safe."""

    def __init__(
        self, graph: bytes, name: str = "the graph", threads: int = 1, gives: tuple[str, ...] = ("logits",)
    ) -> None:
        """Run a graph with the outputs `gives`: predictions, and optionally anomaly scores."""
        self.name, self._gives = name, list(gives)
        self.session = open_session(graph, session_options(threads), name)

    def answer(self, x: NDArray[np.generic]) -> BatchOutput:
        """Run the graph on rows in its shape and type."""
        try:
            if len(x) <= BATCH:
                return self._run(x)
            parts = [self._run(x[at : at + BATCH]) for at in range(0, len(x), BATCH)]
        except (*RUNTIME_ERRORS, ValueError) as error:  # ValueError: unknown input or output
            raise ModelError(f"onnxruntime cannot run {self.name}: {first_line(error)}") from error
        scores = [part.scores for part in parts if part.scores is not None]
        return BatchOutput(np.concatenate([part.outputs for part in parts]), np.concatenate(scores) if scores else None)

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return only the outputs: a classifier's logits, or another task's values."""
        return self.answer(x).outputs

    def metrics(self, samples: Exemplars, task: TaskSpec) -> dict[str, float]:
        """Return the metrics on these samples, the task's main metric first."""
        x, y = samples.packed()
        faulty, compared = samples.faulty_mask(), samples.expected()
        if task.kind == "reconstruction":
            compared = np.zeros(len(y), np.int64) if faulty is None else faulty.astype(np.int64)
        total: Tally = {}
        for at in range(0, len(y), BATCH):
            rows = samples.unpacked(x[at : at + BATCH])
            total = added(total, tally(task, self.answer(rows), rows, compared[at : at + BATCH]))
        return metrics_of(task, total)

    def _run(self, x: NDArray[np.generic]) -> BatchOutput:
        return BatchOutput(*self.session.run(self._gives, {"x": x}))


class ReleasePredictor(Predictor):
    """Predicts with one release, whose graph must match its card."""

    def __init__(self, graph: bytes, card: Card, threads: int = 1) -> None:
        super().__init__(graph, f"release {card.version} of {card.line}", threads, output_names(card.learns))
        self.card = card
        self.shape = card.input.shape
        self.dtype = np.dtype(card.input.dtype)
        if wrong := _disagreement(card, self.session):
            raise ModelError(f"the graph of {self.name} does not match its card: {wrong}")

    def check_probe(self) -> None:
        """Raise ModelError if the predictions here differ from those in the card."""
        card, probe = self.card, self.card.probe
        shape = (probe.rows, *card.learns.output)
        there = np.frombuffer(probe.logits, dtype="<f4")
        if probe.rows < 1 or there.size != prod(shape):
            raise ModelError(f"the card of {self.name} has no valid predictions to compare with")
        here, scores = self.answer(probe_rows(card))
        name = card.learns.answers
        if here.shape != shape:
            raise ModelError(f"{self.name} returns {name} of shape {here.shape} instead of {shape}")
        self._compare(here, there.reshape(shape), probe.atol, "predictions")
        if scores is not None:
            self._check_scores(scores)

    def _check_scores(self, here: NDArray[np.float32]) -> None:
        rows, expected = self.card.probe.rows, self.card.probe.scores
        there = np.frombuffer(expected.values, dtype="<f4") if expected else np.zeros(0, np.float32)
        if there.size != rows or not expected or not self.card.anomaly:
            raise ModelError(f"the card of {self.name} has no valid scores to compare with, or no threshold for them")
        if here.shape != (rows,):
            raise ModelError(f"{self.name} returns scores of shape {here.shape} instead of {(rows,)}")
        self._compare(here, there, expected.atol, "scores")

    def _compare(self, here: NDArray[np.float32], there: NDArray[np.float32], most: float, what: str) -> None:
        apart = np.abs(here.astype(np.float64) - there)
        # Written as "not within", so that a NaN disagrees too.
        if not (apart <= most).all():
            furthest = nan if np.isnan(apart).any() else float(apart.max())
            raise ModelError(
                f"the {what} of {self.name} on this machine differ by up to {furthest:.3g} from those in its card; "
                f"at most {most:.3g} is allowed"
            )

    def typed(self, given: NDArray[np.generic]) -> NDArray[np.generic]:
        """Convert rows to the graph's type."""
        if given.dtype.kind not in "buif":
            raise DataError(f"{self.card.line} takes numbers, not values of type {given.dtype}")
        if given.dtype.kind == "f" and self.dtype.kind == "i" and not np.array_equal(given, np.trunc(given)):
            raise DataError(f"{self.card.line} takes whole numbers, not {given.dtype} with fractions")
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(given, dtype=self.dtype)


def probe_rows(card: Card) -> NDArray[np.generic]:
    """Return the probe rows of a card."""
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
    for name in (names := output_names(card.learns)):
        if name not in gives:
            return f"it returns {', '.join(gives)} instead of {' and '.join(names)}"
        if gives[name].type != "tensor(float)":
            return f"its {name} {'is' if name == SCORE else 'are'} a {gives[name].type} instead of float32"
    if takes[0].type != _TYPES[card.input.dtype]:
        return f"it takes a {takes[0].type} instead of {card.input.dtype}"
    shapes = zip(names, (card.learns.output, ()), strict=False)
    for what, found, sample in (
        ("takes samples", takes[0].shape, card.input.shape),
        *((f"returns {name}", gives[name].shape, shape) for name, shape in shapes),
    ):
        if not _fits(found, sample):
            return f"it {what} of shape {found} instead of rows of {list(sample)}"
    return None


def _fits(found: list[int | str | None], sample: tuple[int, ...]) -> bool:
    """Return whether a graph's shape accepts any number of such samples; open axes fit any size."""
    if not found:  # no declared shape: the probe checks it
        return True
    if len(found) != 1 + len(sample) or isinstance(found[0], int):
        return False
    return all(size == wanted for size, wanted in zip(found[1:], sample, strict=True) if isinstance(size, int))


def supports_fusion(kit: Kit) -> bool:
    """Return whether a kit has a graph that fuses its model with another model's trunk; only plain classifiers can."""
    return bool(kit.two_stream and kit.two_stream.fused)


class FusedGraphs(Graphs):
    """A kit's graphs whose outputs are those of the model fused with the trunk of `anchor`."""

    anchor: NDArray[np.float32]

    def with_trunk(self, anchor: NDArray[np.float32]) -> Self:
        """Return a copy with another model's trunk."""
        self._session("fused")  # open the shared session once
        other = copy(self)
        other.anchor = anchor
        return other

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the fused model's outputs for a batch."""
        feeds = {"vector": vector, "x": x, "anchor_0": self.anchor}
        return self._run("fused", self.learns.answers, feeds, (len(x), *self.learns.output))
