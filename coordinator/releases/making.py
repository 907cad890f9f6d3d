"""From a graph and samples to a checked release: compared, measured, perhaps made int8, and described on its card."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from importlib.metadata import version
from math import nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnxruntime

from coordinator.releases.file import LARGEST_CARD, release_of
from sojourn.errors import DataError, ModelError
from sojourn.model.predictor import Predictor
from sojourn.protocol.release import Card, ProbeCheck

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.releases.file import ReleaseFile
    from coordinator.state import JobState
    from sojourn.model.exemplars import Exemplars
    from sojourn.protocol.release_messages import MakeRelease
    from sojourn.protocol.spec import InputSpec, Kit

TOLERANCE = 1e-3
"""Of the largest logit. Two float32 engines that sum in different orders come to 1e-6 in a layer and 1e-5 in a deep
model; a weight that is not the trained one shows by its own size."""
INT8_TOLERANCE = 0.05
"""Of the largest logit. Int8 logits have 255 steps, and another processor's rounding may move a value by a few."""
COMPARED = 1024
"""Rows that are compared with torch at most."""
PROBE_ROWS = 8
PROBE_BYTES = LARGEST_CARD // 8
Encoding = Literal["float32", "int8"]


@dataclass(frozen=True)
class Wanted:
    """What the release is to be."""

    line: str
    version: int
    encoding: Encoding = "float32"
    notes: str = ""
    max_loss: float = 0.05


@dataclass(frozen=True)
class Material:
    """What it is made of. Rows that were `shown` may calibrate; the `test` says how good it is."""

    graph: bytes
    input: InputSpec
    classes: tuple[str, ...]
    shown: Exemplars | None
    test: Exemplars | None


@dataclass(frozen=True)
class _Encoded:
    graph: bytes
    accuracy: float
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
    reference = TorchReference(job, kit, vector, shown)
    samples = shown or test
    rows = samples.unpacked(samples.packed()[0][:COMPARED]) if samples else reference.made_up(PROBE_ROWS)
    wanted = Wanted(asked.line, asked.version, asked.encoding, asked.notes, asked.max_loss)
    material = Material(bake(kit, vector), kit.input, kit.classes, shown, test)
    options = f" {json.dumps(job.model.options)}" if job.model.options else ""
    source = Path(job.data.test or job.data.exemplars or "").name
    about = {
        "job": state.name,
        "strategy": job.strategy,
        "model": f"{job.model.name}{options}"[:2000],
        "rounds": len(state.history) if number is None else number,
        "devices": len(state.fleet),
        "data": f"trained on the devices' own data; {_samples(material, source)}",
    }
    if job.model.start is not None:
        about |= {"source": job.model.source or Path(job.model.start).name, "licence": job.model.licence}
    return make(material, wanted, rows, reference.logits(rows), about)


def make(
    material: Material,
    wanted: Wanted,
    rows: NDArray[np.generic],
    by_torch: NDArray[np.float32] | None,
    about: dict[str, Any],
) -> ReleaseFile:
    """The release; ModelError where the graph does not answer for these rows as torch does."""
    here = Predictor(material.graph).logits(rows)
    checked = _agreement(here, by_torch) if by_torch is not None else _steadiness(material.graph, rows, here)
    encoded = _encode(material, wanted)
    expected, tolerance = here if by_torch is None else by_torch, TOLERANCE
    if wanted.encoding == "int8":
        expected, tolerance = Predictor(encoded.graph).logits(rows), INT8_TOLERANCE
        checked += f"; {_distance(here, expected)}"
    card = Card(
        line=wanted.line, version=wanted.version, notes=wanted.notes, encoding=wanted.encoding,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        classes=material.classes, input=material.input, probe=_probe(rows, expected, tolerance),
        accuracy=encoded.accuracy, accuracy_lost=encoded.lost, tested=encoded.tested, checked=checked, **about,
    )  # fmt: skip
    return release_of(card, encoded.graph)


def _encode(material: Material, wanted: Wanted) -> _Encoded:
    """The graph as it ships, and what it is worth on rows that it was not calibrated with."""
    plain, tested = material.graph, material.test or material.shown
    if wanted.encoding == "float32":
        accuracy = Predictor(plain).accuracy(tested) if tested else nan
        return _Encoded(plain, accuracy, 0.0, len(tested.y) if tested else 0)
    if tested is None:
        raise DataError("int8 needs labelled samples: some to calibrate it, others to tell what it costs")
    from coordinator.releases.quantising import halves, quantised  # noqa: PLC0415  # takes a second to load

    shown, test = (material.shown, material.test) if material.shown and material.test else halves(tested)
    graph = quantised(plain, shown.arrays()[0])
    before, after = Predictor(plain).accuracy(test), Predictor(graph).accuracy(test)
    lost = before - after
    if lost > wanted.max_loss:
        raise ModelError(
            f"as int8 the model loses {100 * lost:.1f} points of accuracy ({100 * before:.1f} % to {100 * after:.1f} % "
            f"on {len(test.y)} samples), and {100 * wanted.max_loss:.1f} are allowed: ship it as float32, or raise "
            "--max-loss"
        )
    return _Encoded(graph, after, lost, len(test.y))


def _agreement(here: NDArray[np.float32], by_torch: NDArray[np.float32]) -> str:
    """What was compared, in words; ModelError where that is not the same model."""
    import torch  # noqa: PLC0415  # only where there is a model in torch to compare with

    if here.shape != by_torch.shape:
        raise ModelError(f"the graph gives logits of shape {here.shape}, torch {by_torch.shape}")
    scale, apart = float(np.abs(by_torch).max()), float(np.abs(here - by_torch).max())
    if not apart <= TOLERANCE * scale:  # a NaN is no agreement either
        raise ModelError(
            f"the graph and torch disagree on {len(here)} rows: logits are off by {apart:.3g}, where the largest is "
            f"{scale:.3g} (allowed: {TOLERANCE:g} of it). If the model's code has changed since the job was compiled, "
            "bring the old code back"
        )
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} against torch {torch.__version__} on "
        f"{len(here)} rows: logits differ by at most {apart:.2g}, the largest is {scale:.3g}"
    )


def _steadiness(graph: bytes, rows: NDArray[np.generic], here: NDArray[np.float32]) -> str:
    """The same in words where there is no torch to compare with."""
    if not np.isfinite(here).all() or not np.array_equal(Predictor(graph).logits(rows), here):
        raise ModelError(f"the graph does not give the same finite logits for {len(rows)} rows when it is loaded again")
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} gives the same logits for {len(rows)} "
        "rows when it is loaded again; there was nothing else to compare with"
    )


def _distance(plain: NDArray[np.float32], int8: NDArray[np.float32]) -> str:
    same = int((plain.argmax(axis=1) == int8.argmax(axis=1)).sum())
    return (
        f"int8 against float32 on them: logits differ by at most {float(np.abs(plain - int8).max()):.2g}, "
        f"the class is the same for {same} of {len(plain)}"
    )


def _probe(rows: NDArray[np.generic], logits: NDArray[np.float32], tolerance: float) -> ProbeCheck:
    """A few rows from everywhere among them, as many as a card has room for."""
    most = min(PROBE_ROWS, max(1, PROBE_BYTES // (prod(rows.shape[1:]) * rows.itemsize)))
    at = np.unique(np.linspace(0, len(rows) - 1, most).astype(np.int64))
    x = rows[at].astype(rows.dtype.newbyteorder("<"))
    scale = float(np.abs(logits).max())
    return ProbeCheck(len(at), x.tobytes(), logits[at].astype("<f4").tobytes(), tolerance * max(scale, 1e-3))


def _samples(material: Material, source: str) -> str:
    """The samples in words, by the name of their file alone: where it is is nobody's business."""
    test, shown = material.test, material.shown
    if test is None and shown is None:
        return "no samples were given"
    tested = f"tested on {len(test.y):,} samples of {source}" if test else f"tested on exemplars of {source}"
    return f"{tested}; {len(shown.y):,} exemplars apart from them" if test and shown else tested
