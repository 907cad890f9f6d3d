"""Predicts with a graph that takes `x` and gives `logits`, and with a release: a graph that keeps to its card."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError, ModelError
from sojourn.model.session import REFUSED, first_line, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime
    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.protocol.release import Card

BATCH = 256
"""Rows at a time: the memory that a test set takes does not grow with it."""
_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class Predictor:
    """A prediction graph on this machine; safe to use from many threads."""

    def __init__(self, graph: bytes, name: str = "the graph", threads: int = 1) -> None:
        self.name = name
        self.session = open_session(graph, session_options(threads), name)

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The answers for rows in the graph's shape and type."""
        try:
            if len(x) <= BATCH:
                return self._run(x)
            return np.concatenate([self._run(x[at : at + BATCH]) for at in range(0, len(x), BATCH)])
        except (*REFUSED, ValueError) as error:  # ValueError: there is no such input or output
            raise ModelError(f"onnxruntime does not run {self.name}: {first_line(error)}") from error

    def accuracy(self, samples: Exemplars) -> float:
        """The share of right answers."""
        x, y = samples.packed()
        starts = range(0, len(y), BATCH)
        batches = ((self.logits(samples.unpacked(x[at : at + BATCH])), y[at : at + BATCH]) for at in starts)
        return sum(int((logits.argmax(axis=1) == labels).sum()) for logits, labels in batches) / len(y)

    def _run(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        answers: NDArray[np.float32] = self.session.run(["logits"], {"x": x})[0]
        return answers


class ReleasePredictor(Predictor):
    """Predicts with one release; made only of a graph that takes and gives what its card says."""

    def __init__(self, graph: bytes, card: Card, threads: int = 1) -> None:
        super().__init__(graph, f"release {card.version} of {card.line}", threads)
        self.card = card
        self.shape = card.input.shape
        self.dtype = np.dtype(card.input.dtype)
        if wrong := _disagreement(card, self.session):
            raise ModelError(f"the graph of {self.name} is not what its card says: {wrong}")

    def check_probe(self) -> None:
        """Refuse a release whose answers here are not those that came with it."""
        card, probe = self.card, self.card.probe
        there = np.frombuffer(probe.logits, dtype="<f4")
        if probe.rows < 1 or there.size != probe.rows * len(card.classes):
            raise ModelError(f"the card of {self.name} has no answers that could be compared")
        here = self.logits(probe_rows(card))
        if here.shape != (probe.rows, len(card.classes)):
            raise ModelError(
                f"{self.name} gives logits of shape {here.shape} instead of {(probe.rows, len(card.classes))}"
            )
        apart = np.abs(here.astype(np.float64) - there.reshape(here.shape))
        # Written as "not within", so that a NaN disagrees too.
        if not (apart <= probe.atol).all():
            furthest = nan if np.isnan(apart).any() else float(apart.max())
            raise ModelError(
                f"the answers of {self.name} differ here by up to {furthest:.3g} from those that came with it, "
                f"where {probe.atol:.3g} is allowed"
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
    if "logits" not in gives:
        return f"it gives {', '.join(gives)} instead of logits"
    if takes[0].type != _TYPES[card.input.dtype]:
        return f"it takes a {takes[0].type} instead of {card.input.dtype}"
    if gives["logits"].type != "tensor(float)":
        return f"its logits are a {gives['logits'].type} instead of float32"
    for what, found, sample in (
        ("takes samples", takes[0].shape, card.input.shape),
        ("gives logits", gives["logits"].shape, (len(card.classes),)),
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
