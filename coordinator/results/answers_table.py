"""What the newest model answers for test samples, as a table: predicted and true values, or scores of anomalies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.results.folder import ResultFolder
    from coordinator.state import JobState
    from sojourn.store.blobs import BlobStore

ANSWERS_TABLE = "answers.csv"
MOST = 1000
"""Samples that are shown, spread over all of the test set."""
KINDS = ("regression", "forecast", "reconstruction")


def save_answers(state: JobState, blobs: BlobStore, results: ResultFolder) -> None:
    """Write the table, where the task has values to be compared and there is a test set."""
    if state.kit is None or state.test is None or state.settings.task.kind not in KINDS:
        return
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    test, graphs = unpack_blob(blobs.read(state.test.digest), Exemplars), Graphs(kit)
    vector = vectors.load(blobs, state.vectors["model"], kit.model)
    x, y = test.packed()
    at = np.unique(np.linspace(0, len(y) - 1, min(MOST, len(y))).astype(np.int64))
    rows = graphs.features(test.unpacked(x[at]))
    if kit.learns.kind == "reconstruction":
        faulty = test.marked()
        marks = np.zeros(len(at), np.int64) if faulty is None else faulty[at].astype(np.int64)
        scores = graphs.losses(vector, rows, y[at])
        results.table(ANSWERS_TABLE, ("score", "faulty"), zip(scores.tolist(), marks.tolist(), strict=True))
        return
    answers = graphs.outputs(vector, rows).astype(np.float64)
    true = np.asarray(test.compared()[at], np.float64).reshape(answers.shape)
    names = kit.learns.names or tuple(f"value {number + 1}" for number in range(answers.shape[-1]))
    table = _compared(answers.reshape(-1, len(names)), true.reshape(-1, len(names)), names)
    results.table(ANSWERS_TABLE, ("quantity", "true", "predicted"), table)


def _compared(answers: np.ndarray, true: np.ndarray, names: tuple[str, ...]) -> Iterator[tuple[str, float, float]]:
    for at, name in enumerate(names):
        yield from ((name, float(was), float(said)) for was, said in zip(true[:, at], answers[:, at], strict=True))
