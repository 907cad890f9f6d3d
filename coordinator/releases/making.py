"""From a graph and samples to a checked release: compared, measured, perhaps made int8, and described on its card."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from coordinator.releases.agreement import TOLERANCE, agreement, distance, steadiness
from coordinator.releases.file import LARGEST_CARD, release_of
from coordinator.releases.own_models import check_outcome, whose_model
from sojourn.errors import DataError, ModelError
from sojourn.model.answers import given_by, scores_of, threshold_in
from sojourn.model.predictor import Predictor
from sojourn.protocol.figure_names import MAIN, called, figure_text, worsening
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.release import AnomalyRule, Card, ProbeCheck, ProbeScores
from sojourn.protocol.task import classes_as_strata

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.releases.file import ReleaseFile
    from coordinator.state import JobState
    from sojourn.model.answers import Answer
    from sojourn.model.exemplars import Exemplars
    from sojourn.protocol.release_messages import MakeRelease
    from sojourn.protocol.spec import InputSpec, Kit, TableSpec
    from sojourn.protocol.task import TaskSpec

INT8_TOLERANCE = 0.05
"""Of the largest logit. Int8 logits have 255 steps, and another processor's rounding may move a value by a few."""
INT8_SCORE_TOLERANCE = 0.25
"""Of the largest score: a square of differences moves by more than what it is made of."""
COMPARED = 1024
"""Rows that are compared with torch at most."""
PROBE_ROWS = 8
PROBE_BYTES = LARGEST_CARD // 8
QUANTILE = 0.99
"""The share of a device's own samples that is below the threshold of anomalies, unless told."""
Encoding = Literal["float32", "int8"]


@dataclass(frozen=True)
class Wanted:
    """What the release is to be."""

    line: str
    version: int
    encoding: Encoding = "float32"
    notes: str = ""
    max_loss: float = 0.05
    quantile: float = QUANTILE


@dataclass(frozen=True)
class Material:
    """What it is made of. Rows that were `shown` may calibrate; the `test` says how good it is."""

    graph: bytes
    input: InputSpec
    classes: tuple[str, ...]
    shown: Exemplars | None
    test: Exemplars | None
    task: TaskSpec | None = None
    """What was learnt, where it is no plain classification."""
    table: TableSpec | None = None
    """The columns of a sample by name, where it is a row of a table."""

    @property
    def learns(self) -> TaskSpec:
        """What was learnt."""
        return self.task or classes_as_strata(len(self.classes))

    def predictor(self, graph: bytes | None = None) -> Predictor:
        """What predicts with its graph, or with another that gives the same."""
        return Predictor(graph or self.graph, gives=given_by(self.learns))


@dataclass(frozen=True)
class _Encoded:
    """A graph as it ships: its figures, what of the accuracy or which share of the main figure its encoding cost."""

    graph: bytes
    figures: dict[str, float]
    lost: float
    tested: int


def from_job(
    state: JobState,
    asked: MakeRelease,
    kit: Kit,
    vector: NDArray[np.float32],
    shown: Exemplars | None,
    test: Exemplars | None,
    number: int | None = None,
) -> ReleaseFile:
    """A release of the model that a job had after a round, the last unless told; it is compared with torch first."""
    from coordinator.compiling.baking import bake  # noqa: PLC0415  # a release of an ONNX file needs neither
    from coordinator.releases.torch_reference import TorchReference  # noqa: PLC0415

    job = state.settings
    check_outcome(job.parts(), kit.model, named=asked.round is not msgspec.UNSET)
    reference = TorchReference(job, kit, vector, shown)
    samples = shown or test
    rows = samples.unpacked(samples.packed()[0][:COMPARED]) if samples else reference.made_up(PROBE_ROWS)
    quantile = QUANTILE if asked.quantile is msgspec.UNSET else asked.quantile
    wanted = Wanted(asked.line, asked.version, asked.encoding, asked.notes, asked.max_loss, quantile)
    graph = bake(kit, vector, scored=kit.learns.kind == "reconstruction")
    material = Material(graph, kit.input, kit.classes, shown, test, kit.task or None, kit.table or None)
    options = f" {json.dumps(job.model.options)}" if job.model.options else ""
    source = Path(job.data.test or job.data.exemplars or "").name
    about = {
        "job": state.name,
        "strategy": job.strategy,
        "model": f"{job.model.name}{options}"[:2000],
        "rounds": len(state.history) if number is None else number,
        "devices": len(state.fleet),
        "data": f"trained on the devices' own data; {whose_model(job.parts())}{_samples(material, source)}",
    }
    if job.model.start is not None:
        about |= {"source": job.model.source or Path(job.model.start).name, "licence": job.model.licence}
    return make(material, wanted, rows, reference.answer(rows), about)


def make(
    material: Material,
    wanted: Wanted,
    rows: NDArray[np.generic],
    by_torch: Answer | None,
    about: dict[str, Any],
) -> ReleaseFile:
    """The release; ModelError where the graph does not answer for these rows as torch does."""
    here = material.predictor().answer(rows)
    what = material.learns.answers
    checked = agreement(here, by_torch, what) if by_torch is not None else steadiness(material.predictor(), rows, here)
    encoded = _encode(material, wanted)
    expected, tolerances = by_torch or here, (TOLERANCE, TOLERANCE)
    if wanted.encoding == "int8":
        expected, tolerances = material.predictor(encoded.graph).answer(rows), (INT8_TOLERANCE, INT8_SCORE_TOLERANCE)
        checked += f"; {distance(material.learns, here, expected)}"
    worse = msgspec.UNSET if wanted.encoding == "float32" else within(encoded.lost, LOSS)
    plain, rule = material.learns.kind == "classification", _rule(material, encoded.graph, wanted.quantile, rows)
    card = Card(
        line=wanted.line, version=wanted.version, notes=wanted.notes, encoding=wanted.encoding,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        classes=material.classes, input=material.input, probe=_probe(rows, expected, tolerances),
        accuracy=encoded.figures.get("accuracy", nan) if plain else nan, accuracy_lost=encoded.lost if plain else 0.0,
        tested=encoded.tested, checked=checked, task=material.task or msgspec.UNSET,
        figures={name: within(each, LOSS) for name, each in encoded.figures.items()} or msgspec.UNSET,
        worse=msgspec.UNSET if plain else worse, anomaly=rule or msgspec.UNSET,
        table=material.table or msgspec.UNSET, **about,
    )  # fmt: skip
    return release_of(card, encoded.graph)


def _encode(material: Material, wanted: Wanted) -> _Encoded:
    """The graph as it ships, and what it is worth on rows that it was not calibrated with."""
    plain, tested, learns = material.graph, material.test or material.shown, material.learns
    if wanted.encoding == "float32":
        figures = material.predictor().figures(tested, learns) if tested else {}
        return _Encoded(plain, figures, 0.0, len(tested.y) if tested else 0)
    if tested is None:
        raise DataError("int8 needs labelled samples: some to calibrate it, others to tell what it costs")
    from coordinator.releases.quantising import halves, quantised  # noqa: PLC0415  # takes a second to load

    shown, test = (material.shown, material.test) if material.shown and material.test else halves(tested)
    graph = quantised(plain, shown.arrays()[0])
    before, after = (material.predictor(each).figures(test, learns) for each in (plain, graph))
    name = MAIN[learns.kind]
    # Of shares of right answers people count points; any other figure has a scale of its own.
    points = name == "accuracy"
    lost = before[name] - after[name] if points else worsening(name, after[name], before[name])
    if not lost <= wanted.max_loss:
        cost = f"{100 * lost:.1f} {'points' if points else 'percent'} of {called(name)}"
        change = " to ".join(figure_text(name, each[name]) for each in (before, after))
        raise ModelError(
            f"as int8 the model loses {cost} ({change} on {len(test.y)} samples), and {100 * wanted.max_loss:.1f} are "
            "allowed: ship it as float32, or raise --max-loss"
        )
    return _Encoded(graph, after, lost, len(test.y))


def _rule(material: Material, graph: bytes, quantile: float, rows: NDArray[np.generic]) -> AnomalyRule | None:
    """From which score on a sample is an anomaly where a device has no samples of its own to say it."""
    if material.learns.kind != "reconstruction":
        return None
    samples = material.shown or material.test
    if samples is not None:
        faulty = samples.marked()
        rows = samples.arrays()[0] if faulty is None else samples.arrays()[0][~faulty]
    scores = scores_of(material.predictor(graph).answer(rows))
    return AnomalyRule(quantile, threshold_in(scores, quantile), len(scores) if samples else 0)


def _probe(rows: NDArray[np.generic], expected: Answer, tolerances: tuple[float, float]) -> ProbeCheck:
    """A few rows from everywhere among them, as many as a card has room for."""
    answers, scores = expected
    widest = max(prod(rows.shape[1:]) * rows.itemsize, prod(answers.shape[1:]) * answers.itemsize)
    at = np.unique(np.linspace(0, len(rows) - 1, min(PROBE_ROWS, max(1, PROBE_BYTES // widest))).astype(np.int64))
    x = rows[at].astype(rows.dtype.newbyteorder("<"))
    of_answers, of_scores = tolerances
    told = None if scores is None else ProbeScores(_little(scores[at]), of_scores * _scale(scores))
    return ProbeCheck(len(at), x.tobytes(), _little(answers[at]), of_answers * _scale(answers), told or msgspec.UNSET)


def _scale(values: NDArray[np.float32]) -> float:
    return max(float(np.abs(values).max()), 1e-3)


def _little(values: NDArray[np.float32]) -> bytes:
    return values.astype("<f4").tobytes()


def _samples(material: Material, source: str) -> str:
    """The samples in words, by the name of their file alone: where it is is nobody's business."""
    test, shown = material.test, material.shown
    if test is None and shown is None:
        return "no samples were given"
    tested = f"tested on {len(test.y):,} samples of {source}" if test else f"tested on exemplars of {source}"
    return f"{tested}; {len(shown.y):,} exemplars apart from them" if test and shown else tested
