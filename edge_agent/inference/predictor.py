"""One release in memory: its card, and its graph on onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from sojourn.errors import DataError, InvalidMessage, ModelError
from sojourn.model.graphs import REFUSED
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release import Card

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.releases.folder import ReleaseFolder, Served

_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}


class Predictor:
    """Predicts with one release; safe to use from many threads."""

    def __init__(self, card: Card, session: onnxruntime.InferenceSession) -> None:
        self.card, self.session = card, session
        self.shape = card.input.shape
        self.dtype = np.dtype(card.input.dtype)

    def logits(self, rows: NDArray[np.generic]) -> NDArray[np.float32]:
        """The answers for rows in the card's shape and type."""
        try:
            answers: NDArray[np.float32] = self.session.run(["logits"], {"x": rows})[0]
        except REFUSED as error:
            raise ModelError(f"release {self.card.version} of {self.card.line} fails to predict: {error}") from error
        return answers

    def rows(self, x: object) -> tuple[NDArray[np.generic], bool]:
        """One sample or a batch as rows that the graph takes, and whether it was one sample."""
        try:
            given = np.asarray(x)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"this is no array of numbers: {error}") from error
        one = given.shape == self.shape
        if not one and given.shape[1:] != self.shape:
            raise DataError(
                f"{self.card.line} takes samples of shape {self.shape}, or batches of them, not an array of shape "
                f"{given.shape}"
            )
        return self._typed(given[np.newaxis] if one else given), one

    def _typed(self, given: NDArray[np.generic]) -> NDArray[np.generic]:
        if given.dtype.kind not in "buif":
            raise DataError(f"{self.card.line} takes numbers, not values of type {given.dtype}")
        if given.dtype.kind == "f" and self.dtype.kind == "i" and not np.array_equal(given, np.trunc(given)):
            raise DataError(f"{self.card.line} takes whole numbers, not {given.dtype} with fractions")
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(given, dtype=self.dtype)


def load(folder: ReleaseFolder, served: Served, threads: int = 1) -> Predictor:
    """A version from its files, if they are whole and the graph is what the card says."""
    graph, card = folder.read(served)
    return made_of(graph, card_of(card, served), threads)


def card_of(data: bytes, served: Served) -> Card:
    """The card of this version."""
    try:
        card = unpack_blob(data, Card)
    except InvalidMessage as error:
        raise ModelError(f"the card of release {served.version} of {served.line} is none: {error}") from error
    if (card.line, card.version) != (served.line, served.version):
        raise ModelError(
            f"the card of release {served.version} of {served.line} is of release {card.version} of {card.line}"
        )
    return card


def made_of(graph: bytes, card: Card, threads: int = 1) -> Predictor:
    """A graph that agrees with its card, loaded."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A thread that waits actively between predictions would take a core from the program around it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    name = f"release {card.version} of {card.line}"
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except REFUSED as error:
        raise ModelError(f"onnxruntime {onnxruntime.__version__} refuses {name}: {error}") from error
    except (ValueError, RuntimeError, MemoryError) as error:  # what its loader raises before it looks at the graph
        raise ModelError(f"{name} is no graph for onnxruntime {onnxruntime.__version__}: {error}") from error
    if wrong := _disagreement(card, session):
        raise ModelError(f"the graph of {name} is not what its card says: {wrong}")
    return Predictor(card, session)


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
