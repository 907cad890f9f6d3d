"""Tests of releases of jobs: compared with torch, measured on the test set, and converted to int8."""

from __future__ import annotations

import datetime
import tempfile
from math import isnan
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from coordinator.compiling import prediction_model
from coordinator.machine.work import BuildRelease, CoordinatorWorker, ReleaseBuilt
from coordinator.releases import quantising
from coordinator.releases.file import release_from_blobs, release_of
from coordinator.releases.making import INT8_TOLERANCE, TOLERANCE, from_job
from coordinator.releases.quantising import halves, quantised
from sojourn.errors import DataError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.predictions import Predictor
from sojourn.store.blobs import FolderBlobs
from tests.coordinator.releases.release_material import ASKED, INT8, Trained, compiled, text, trained

OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(64, width), nn.Dropout(0.5), nn.Linear(width, 10)
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x.flatten(1)) + self.frozen + self.shift)))
"""


def by_hand(job: Trained, x: np.ndarray) -> np.ndarray:
    """Return the mlp's logits in plain numpy, with the exemplars' mean and deviation."""
    shown = job.exemplars.arrays()[0].astype(np.float64)
    w1, b1, w2, b2 = (tensor.astype(np.float64) for tensor in job.kit.model.split(job.vector).values())
    flat = ((x - shown.mean()) / shown.std()).reshape(len(x), -1)
    logits: np.ndarray = np.maximum(flat @ w1.T + b1, 0) @ w2.T + b2
    return logits


def run(graph: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    logits: np.ndarray = session.run(None, {"x": x})[0]
    return logits


def tampered(graph: bytes, factor: float) -> bytes:
    """Return the graph with its largest weight tensor changed."""
    model = onnx.load_from_string(graph)
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array((values * np.float32(factor)).astype(values.dtype), weight.name))
    return bytes(model.SerializeToString())


def test_card_describes_the_release() -> None:
    job = trained("mlp")
    job.state.fleet = {"a": None, "b": None}
    release = from_job(job.state, ASKED, *job.parts)
    card = release.card
    assert (card.line, card.version, card.notes, card.encoding) == ("digits", 3, "for the test", "float32")
    assert (card.job, card.strategy, card.model) == ("job", "fedavg", 'mlp {"hidden": [24]}')
    assert (card.rounds, card.devices, card.classes) == (0, 2, tuple("0123456789"))
    assert (card.input.shape, card.input.dtype) == ((1, 8, 8), "float32")
    tested = "tested on 260 samples of digits; 100 other exemplars"
    assert card.data == f"trained on the devices' own data; {tested}"
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(card.created)
    assert abs(age) < datetime.timedelta(hours=1)  # the clock may be set in between
    assert "against torch" in card.checked
    assert "on 100 rows: logits differ by at most" in card.checked


def test_accuracy_and_probe_match_independent_calculation() -> None:
    job = trained("mlp")
    card = from_job(job.state, ASKED, *job.parts).card
    x, y = job.test.arrays()
    right = int((by_hand(job, x).argmax(1) == y).sum())
    assert (card.tested, card.accuracy) == (260, right / 260)
    assert right > 200
    rows = np.frombuffer(card.probe.x, "<f4").reshape(card.probe.rows, 1, 8, 8)
    assert card.probe.rows == 8
    shown = job.exemplars.arrays()[0]
    assert all(any(np.array_equal(row, one) for one in shown) for row in rows)
    logits, expected = np.frombuffer(card.probe.logits, "<f4").reshape(8, 10), by_hand(job, rows)
    assert np.abs(logits - expected).max() < 1e-4
    scale = np.abs(by_hand(job, shown)).max()
    assert card.probe.atol == pytest.approx(TOLERANCE * scale, rel=1e-4)


def test_cnn_accuracy_matches_independent_calculation() -> None:
    job = trained("cnn")
    release = from_job(job.state, ASKED, *job.parts)
    x, y = job.test.arrays()
    assert release.card.accuracy == float((run(release.graph, x).argmax(1) == y).mean()) > 0.8


@pytest.mark.parametrize("factor", [1.01, 0.0, float("nan")])
def test_graph_with_other_weights_is_rejected(factor: float, monkeypatch) -> None:
    job, bake = trained("mlp"), prediction_model.bake
    monkeypatch.setattr(prediction_model, "bake", lambda kit, vector, scored=False: tampered(bake(kit, vector), factor))
    with pytest.raises(ModelError, match=r"the graph and torch disagree on 100 rows: logits differ by"):
        from_job(job.state, ASKED, *job.parts)


def test_custom_model_is_compared_with_its_code(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_model.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    job = compiled(text("own_model:Own", {"width": 7}))
    assert from_job(job.state, ASKED, *job.parts).card.model == 'own_model:Own {"width": 7}'
    import own_model  # type: ignore[import-not-found]

    monkeypatch.setattr(own_model.torch, "relu", own_model.torch.tanh)
    with pytest.raises(ModelError, match="If the model's code has changed since the job was compiled"):
        from_job(job.state, ASKED, *job.parts)
    monkeypatch.undo()
    monkeypatch.setattr(own_model.nn, "Linear", lambda a, b: own_model.torch.nn.Bilinear(a, a, b))
    with pytest.raises(ModelError, match="other tensors than when the job was compiled"):
        from_job(job.state, ASKED, *job.parts)


def test_job_files_may_be_missing() -> None:
    job = trained("mlp")
    gone = msgspec.structs.replace(job.state, text=text("mlp", {"hidden": [24]}, test="/gone/test.npz"))
    card = from_job(gone, ASKED, *job.parts).card
    assert card.data.endswith("tested on 260 samples of test.npz; 100 other exemplars")


def test_job_without_samples_is_compared_on_random_rows() -> None:
    job = trained("mlp")
    shown = job.exemplars.arrays()[0].astype(np.float64)
    known = {"classes": list("0123456789"), "input": [1, 8, 8], "mean": [shown.mean()], "std": [shown.std()]}
    bare = msgspec.structs.replace(job.state, text=text("mlp", {"hidden": [24]}, **known))
    card = from_job(bare, ASKED, job.kit, job.vector, None, None).card
    assert isnan(card.accuracy)
    assert (card.tested, card.probe.rows, card.accuracy_lost) == (0, 8, 0.0)
    assert "on 8 rows" in card.checked
    with pytest.raises(DataError, match="int8 needs labelled samples"):
        from_job(bare, INT8, job.kit, job.vector, None, None)
    known["mean"] = [shown.mean() + 1]
    with pytest.raises(ModelError, match="disagree"):
        from_job(msgspec.structs.replace(bare, text=text("mlp", {"hidden": [24]}, **known)), ASKED, *job.parts)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_int8_accuracy_loss_is_measured(model: str) -> None:
    job = trained(model)
    plain, small = from_job(job.state, ASKED, *job.parts), from_job(job.state, INT8, *job.parts)
    x, y = job.test.arrays()
    before, after = (float((run(each.graph, x).argmax(1) == y).mean()) for each in (plain, small))
    assert small.card.accuracy == after
    assert small.card.accuracy_lost == pytest.approx(before - after, abs=1e-12)
    assert small.card.encoding == "int8"
    assert len(small.graph) < 0.7 * len(plain.graph)
    kinds = [tensor.data_type for tensor in onnx.load_from_string(small.graph).graph.initializer]
    assert kinds.count(onnx.TensorProto.INT8) >= 2
    assert not np.array_equal(run(small.graph, x), run(plain.graph, x))
    logits = np.frombuffer(small.card.probe.logits, "<f4")
    rows = np.frombuffer(small.card.probe.x, "<f4").reshape(-1, 1, 8, 8)
    assert np.array_equal(logits, run(small.graph, rows).ravel())
    scale = np.abs(run(small.graph, job.exemplars.arrays()[0])).max()
    assert small.card.probe.atol == pytest.approx(INT8_TOLERANCE * scale, rel=1e-5)
    assert "int8 against float32" in small.card.checked


def test_int8_weights_have_seven_bits_and_channel_scales() -> None:
    job = trained("mlp")
    model = onnx.load_from_string(from_job(job.state, INT8, *job.parts).graph)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = [value for value in tensors.values() if value.dtype == np.int8 and value.ndim == 2]
    assert len(weights) == 2
    assert all(np.abs(value.astype(int)).max() == 64 for value in weights)
    assert {24, 10} <= {value.size for value in tensors.values() if value.dtype == np.float32}
    assert [each.domain for each in model.opset_import] == [""]


def test_int8_with_excessive_loss_is_rejected(monkeypatch) -> None:
    job = trained("mlp")
    monkeypatch.setattr(quantising, "quantised", lambda graph, rows: tampered(quantised(graph, rows), 0))
    x, y = job.test.arrays()
    before = float((by_hand(job, x).argmax(1) == y).mean())
    with pytest.raises(ModelError, match=r"as int8 the model loses \d+\.\d points of accuracy .* and the limit is 5.0"):
        from_job(job.state, INT8, *job.parts)
    allowed = from_job(job.state, msgspec.structs.replace(INT8, max_loss=1.0), *job.parts).card
    assert allowed.accuracy_lost == pytest.approx(before - allowed.accuracy)
    assert allowed.accuracy_lost > 0.3


def test_calibration_rows_are_not_used_for_testing(monkeypatch) -> None:
    job, seen = trained("mlp"), list[np.ndarray]()

    def watched(graph: bytes, rows: np.ndarray) -> bytes:
        seen.append(rows)
        return quantised(graph, rows)

    monkeypatch.setattr(quantising, "quantised", watched)
    from_job(job.state, INT8, *job.parts)
    assert np.array_equal(seen[0], job.exemplars.arrays()[0])
    # Without a test set, half of the exemplars calibrate and the other half is for testing.
    card = from_job(job.state, INT8, job.kit, job.vector, job.exemplars, None).card
    assert (card.tested, len(seen[1])) == (50, 50)


def test_halves_are_disjoint_and_stratified() -> None:
    whole = trained("mlp").test
    first, rest = halves(whole)
    counts = [np.bincount(each.y, minlength=10) for each in (first, rest)]
    assert np.array_equal(sum(counts), np.bincount(whole.y, minlength=10))
    assert set(counts[0] - counts[1]) <= {0, 1}
    both = np.concatenate([first.packed()[0], rest.packed()[0]]).reshape(len(whole.y), -1)
    assert len(np.unique(both, axis=0)) == len(whole.y)
    with pytest.raises(ModelError, match="too few for int8"):
        halves(Exemplars.of(np.zeros((2, 1), np.float32), np.array([0, 1])))


def test_quantising_leaves_no_temporary_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = trained("cnn")
    from_job(job.state, INT8, *job.parts)
    assert list(tmp_path.iterdir()) == []


def test_graph_without_weights_cannot_be_quantised() -> None:
    from onnx import TensorProto, helper

    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["logits"])], "g", shape[:1], shape[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ModelError, match="no operator that can be int8"):
        quantised(model.SerializeToString(), np.ones((4, 3), np.float32))


def test_worker_builds_release_in_separate_process(tmp_path: Path) -> None:
    job, blobs = trained("mlp"), FolderBlobs(tmp_path)
    for digest in job.state.live():
        blobs.put(job.blobs.read(digest), digest)
    bench = CoordinatorWorker(blobs, tmp_path)
    built = bench(BuildRelease("t", "me", job.state, ASKED, len(job.state.history)))
    assert isinstance(built, ReleaseBuilt)
    assert (built.ticket, built.operator) == ("t", "me")
    release = release_from_blobs(blobs.read(built.card.digest), blobs.read(built.graph.digest), "it")
    assert release.card.line == "digits"
    assert release.graph == from_job(job.state, ASKED, *job.parts).graph


def test_invalid_card_is_not_written() -> None:
    job = trained("mlp")
    release = from_job(job.state, ASKED, *job.parts)
    with pytest.raises(DataError, match="its card is invalid"):
        release_of(msgspec.structs.replace(release.card, notes="x" * 2001), release.graph)
    assert Predictor(release.graph).metrics(job.test, release.card.learns)["accuracy"] == release.card.accuracy
