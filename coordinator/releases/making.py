"""Create a checked release from a graph and samples: compared with torch, measured, optionally in int8."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from importlib.metadata import version
from math import nan, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordinator.job_state import JobState
from coordinator.releases.file import LARGEST_CARD, ReleaseFile, release_of
from coordinator.strategies import Strategy
from sojourn.errors import DataError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.layers import norm_spec
from sojourn.model.predictions import BatchOutput, Predictor, output_names, score_threshold, scores_of
from sojourn.parts import Common, LocalNorms
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.metric_names import MAIN, called, metric_text, worsening
from sojourn.protocol.release import AnomalyRule, Card, ProbeCheck, ProbeScores
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, TableSpec
from sojourn.protocol.task import TaskSpec, classes_as_strata


def check_outcome(strategy: Strategy, spec: ModelSpec, *, named: bool) -> None:
    """Raise ModelError if the job's one model is not a result; `named` is true if a round was requested by its number.

    FedBN's model has the BatchNorm layers of the start, unless it has none. MetaFed's is that of the ring's last
    device, which can be released if its round is named.
    """
    objective = strategy.objective
    if isinstance(objective, LocalNorms) and norm_spec(spec).size:
        raise ModelError(
            "the result of this job is a model for each device, whose BatchNorm layers never left it; the shared part "
            "with the layers of the start was never tested. To release one model, train it with another "
            "strategy"
        )
    if isinstance(objective, Common) and not named:
        raise ModelError(
            "the result of this job is a model for each device, which never left it. Only the model "
            "of the ring's last device can be released: set its round (--round)"
        )


def model_remark(strategy: Strategy) -> str:
    """Return a remark for the card if the job also has other models."""
    if isinstance(strategy.objective, Common):
        return "the model of the ring's last device only; "
    if strategy.finisher.outcome == "vote":
        return "a student that learned from the vote of the devices' models, not the vote itself; "
    return ""


TOLERANCE = 1e-3
"""The tolerance relative to the largest output. Two float32 engines with different orders of sums differ by 1e-6 in a
layer and 1e-5 in a deep model; a wrong
weight causes a difference as large as its error.
"""


def agreement(here: BatchOutput, by_torch: BatchOutput, name: str = "logits") -> str:
    """Describe the comparison; ModelError if it is not the same model."""
    import torch  # noqa: PLC0415  # only jobs need torch

    words = [_compared(name, here.outputs, by_torch.outputs)]
    if here.scores is not None and by_torch.scores is not None:
        words.append(_compared("scores", here.scores, by_torch.scores))
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} against torch {torch.__version__} on "
        f"{len(here.outputs)} rows: {'; '.join(words)}"
    )


def repeatability(predictor: Predictor, rows: NDArray[np.generic], here: BatchOutput) -> str:
    """Describe the check without torch: the graph gives the same output when it is loaded again."""
    if not np.isfinite(here.outputs).all() or not np.array_equal(predictor.answer(rows).outputs, here.outputs):
        raise ModelError(f"the graph does not return the same finite logits for {len(rows)} rows when loaded again")
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} returns the same logits for "
        f"{len(rows)} rows after it is loaded again; no other comparison was possible"
    )


def distance(task: TaskSpec, plain: BatchOutput, int8: BatchOutput) -> str:
    """Describe the difference between int8 and float32."""
    apart = float(np.abs(plain.outputs - int8.outputs).max())
    if task.kind != "classification":
        return f"int8 against float32 on them: outputs differ by at most {apart:.2g}"
    same = int((plain.outputs.argmax(axis=1) == int8.outputs.argmax(axis=1)).sum())
    return (
        f"int8 against float32 on them: logits differ by at most {apart:.2g}, "
        f"the class is the same for {same} of {len(plain.outputs)}"
    )


def _compared(name: str, here: NDArray[np.float32], by_torch: NDArray[np.float32]) -> str:
    if here.shape != by_torch.shape:
        raise ModelError(f"the graph returns {name} of shape {here.shape}, and torch of shape {by_torch.shape}")
    scale, apart = float(np.abs(by_torch).max()), float(np.abs(here - by_torch).max())
    if not apart <= TOLERANCE * scale:  # also refuses NaN
        raise ModelError(
            f"the graph and torch disagree on {len(here)} rows: {name} differ by {apart:.3g}, the largest is "
            f"{scale:.3g} (allowed: {TOLERANCE:g} of it). If the model's code has changed since the job was compiled, "
            "restore the old code"
        )
    return f"{name} differ by at most {apart:.2g}, the largest is {scale:.3g}"


INT8_TOLERANCE = 0.05
"""The tolerance relative to the largest logit. Int8 logits have 255 steps, and another processor's rounding may change
a value by a few steps.
"""
INT8_SCORE_TOLERANCE = 0.25
"""The tolerance relative to the largest score: squared differences change more than the values."""
COMPARED = 1024
"""The maximum number of rows that are compared with torch."""
PROBE_ROWS = 8
PROBE_BYTES = LARGEST_CARD // 8
QUANTILE = 0.99
"""The default share of a device's own samples below the threshold of anomalies."""
Encoding = Literal["float32", "int8"]


@dataclass(frozen=True)
class Wanted:
    """The settings of the release."""

    line: str
    version: int
    encoding: Encoding = "float32"
    notes: str = ""
    max_loss: float = 0.05
    quantile: float = QUANTILE


@dataclass(frozen=True)
class Material:
    """The contents of a release. `exemplars` may calibrate it; `test` rows measure its quality."""

    graph: bytes
    input: InputSpec
    classes: tuple[str, ...]
    exemplars: Exemplars | None
    test: Exemplars | None
    task: TaskSpec | None = None
    """The task, unless it is a plain classification."""
    table: TableSpec | None = None
    """The columns of a sample by name, if it is a row of a table."""

    @property
    def learns(self) -> TaskSpec:
        """The task."""
        return self.task or classes_as_strata(len(self.classes))

    def predictor(self, graph: bytes | None = None) -> Predictor:
        """Return a predictor with this graph, or with another one that has the same outputs."""
        return Predictor(graph or self.graph, gives=output_names(self.learns))


@dataclass(frozen=True)
class _Encoded:
    """The released graph with its metrics; `lost` is what its encoding cost in the main metric."""

    graph: bytes
    metrics: dict[str, float]
    lost: float
    tested: int


def from_job(
    state: JobState,
    request: MakeRelease,
    kit: Kit,
    vector: NDArray[np.float32],
    exemplars: Exemplars | None,
    test: Exemplars | None,
    number: int | None = None,
) -> ReleaseFile:
    """Create a release of a job's model after a round, by default the last; it is compared with torch first."""
    from coordinator.compiling.prediction_model import bake  # noqa: PLC0415  # a release of an ONNX file needs neither
    from coordinator.releases.torch_reference import TorchReference  # noqa: PLC0415

    job = state.settings
    check_outcome(job.parts(), kit.model, named=request.round is not None)
    reference = TorchReference(job, kit, vector, exemplars)
    samples = exemplars or test
    rows = samples.unpacked(samples.packed()[0][:COMPARED]) if samples else reference.generated_rows(PROBE_ROWS)
    quantile = QUANTILE if request.quantile is None else request.quantile
    wanted = Wanted(request.line, request.version, request.encoding, request.notes, request.max_loss, quantile)
    graph = bake(kit, vector, scored=kit.learns.kind == "reconstruction")
    material = Material(graph, kit.input, kit.classes, exemplars, test, kit.task, kit.table)
    options = f" {json.dumps(job.model.options)}" if job.model.options else ""
    source = Path(job.data.test or job.data.exemplars or "").name
    about = {
        "job": state.name,
        "strategy": job.strategy,
        "model": f"{job.model.name}{options}"[:2000],
        "rounds": len(state.history) if number is None else number,
        "devices": len(state.fleet),
        "data": f"trained on the devices' own data; {model_remark(job.parts())}{_samples(material, source)}",
    }
    if job.model.start is not None:
        about |= {"source": job.model.source or Path(job.model.start).name, "licence": job.model.licence}
    return make(material, wanted, rows, reference.answer(rows), about)


def make(
    material: Material,
    wanted: Wanted,
    rows: NDArray[np.generic],
    by_torch: BatchOutput | None,
    about: dict[str, Any],
) -> ReleaseFile:
    """Create the release; ModelError if the graph's outputs for these rows differ from torch's."""
    here = material.predictor().answer(rows)
    name = material.learns.answers
    if by_torch is not None:
        checked = agreement(here, by_torch, name)
    else:
        checked = repeatability(material.predictor(), rows, here)
    encoded = _encode(material, wanted)
    expected, tolerances = by_torch or here, (TOLERANCE, TOLERANCE)
    if wanted.encoding == "int8":
        expected, tolerances = material.predictor(encoded.graph).answer(rows), (INT8_TOLERANCE, INT8_SCORE_TOLERANCE)
        checked += f"; {distance(material.learns, here, expected)}"
    worse = nan if wanted.encoding == "float32" else within(encoded.lost, LOSS)
    plain, rule = material.learns.kind == "classification", _rule(material, encoded.graph, wanted.quantile, rows)
    card = Card(
        line=wanted.line, version=wanted.version, notes=wanted.notes, encoding=wanted.encoding,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        classes=material.classes, input=material.input, probe=_probe(rows, expected, tolerances),
        accuracy=encoded.metrics.get("accuracy", nan) if plain else nan, accuracy_lost=encoded.lost if plain else 0.0,
        tested=encoded.tested, checked=checked, task=material.task,
        metrics={name: within(each, LOSS) for name, each in encoded.metrics.items()},
        worse=nan if plain else worse, anomaly=rule,
        table=material.table, **about,
    )  # fmt: skip
    return release_of(card, encoded.graph)


def _encode(material: Material, wanted: Wanted) -> _Encoded:
    """Return the graph in the wanted encoding, with its quality on rows that did not calibrate it."""
    plain, tested, learns = material.graph, material.test or material.exemplars, material.learns
    if wanted.encoding == "float32":
        metrics = material.predictor().metrics(tested, learns) if tested else {}
        return _Encoded(plain, metrics, 0.0, len(tested.y) if tested else 0)
    if tested is None:
        raise DataError("int8 needs labelled samples: some to calibrate, others to measure the loss of quality")
    from coordinator.releases.quantising import halves, quantised  # noqa: PLC0415  # takes a second to load

    exemplars, test = (material.exemplars, material.test) if material.exemplars and material.test else halves(tested)
    graph = quantised(plain, exemplars.arrays()[0])
    before, after = (material.predictor(each).metrics(test, learns) for each in (plain, graph))
    name = MAIN[learns.kind]
    # Accuracy is compared in percentage points; all other metrics relatively.
    points = name == "accuracy"
    lost = before[name] - after[name] if points else worsening(name, after[name], before[name])
    if not lost <= wanted.max_loss:
        cost = f"{100 * lost:.1f} {'points' if points else 'percent'} of {called(name)}"
        change = " to ".join(metric_text(name, each[name]) for each in (before, after))
        raise ModelError(
            f"as int8 the model loses {cost} ({change} on {len(test.y)} samples), and the limit is "
            f"{100 * wanted.max_loss:.1f}: release it as float32, or raise --max-loss"
        )
    return _Encoded(graph, after, lost, len(test.y))


def _rule(material: Material, graph: bytes, quantile: float, rows: NDArray[np.generic]) -> AnomalyRule | None:
    """Return the score threshold of anomalies for devices that have no samples to compute their own."""
    if material.learns.kind != "reconstruction":
        return None
    samples = material.exemplars or material.test
    if samples is not None:
        faulty = samples.faulty_mask()
        rows = samples.arrays()[0] if faulty is None else samples.arrays()[0][~faulty]
    scores = scores_of(material.predictor(graph).answer(rows))
    return AnomalyRule(quantile, score_threshold(scores, quantile), len(scores) if samples else 0)


def _probe(rows: NDArray[np.generic], expected: BatchOutput, tolerances: tuple[float, float]) -> ProbeCheck:
    """Return evenly spaced rows as the probe, as many as fit into a card."""
    outputs, scores = expected
    widest = max(prod(rows.shape[1:]) * rows.itemsize, prod(outputs.shape[1:]) * outputs.itemsize)
    at = np.unique(np.linspace(0, len(rows) - 1, min(PROBE_ROWS, max(1, PROBE_BYTES // widest))).astype(np.int64))
    x = rows[at].astype(rows.dtype.newbyteorder("<"))
    for_outputs, for_scores = tolerances
    probe_scores = None if scores is None else ProbeScores(_little_endian(scores[at]), for_scores * _scale(scores))
    return ProbeCheck(len(at), x.tobytes(), _little_endian(outputs[at]), for_outputs * _scale(outputs), probe_scores)


def _scale(values: NDArray[np.float32]) -> float:
    return max(float(np.abs(values).max()), 1e-3)


def _little_endian(values: NDArray[np.float32]) -> bytes:
    return values.astype("<f4").tobytes()


def _samples(material: Material, source: str) -> str:
    """Describe the samples by their file name, without its folder."""
    test, exemplars = material.test, material.exemplars
    if test is None and exemplars is None:
        return "no samples were given"
    tested = f"tested on {len(test.y):,} samples of {source}" if test else f"tested on exemplars of {source}"
    return f"{tested}; {len(exemplars.y):,} other exemplars" if test and exemplars else tested
