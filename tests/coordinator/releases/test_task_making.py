"""Tests of releases of all kinds of tasks: compared with torch, measured with their own metrics, and served."""

from __future__ import annotations

from math import isnan
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from coordinator.compiling.prediction_model import bake
from coordinator.console.release_tables import whole
from coordinator.releases.file import read_card, release_from_blobs
from coordinator.releases.making import Wanted, from_job
from coordinator.releases.quantising import halves
from sojourn.errors import ConfigError, DataError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.model.predictions import ReleasePredictor
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.metric_names import MAIN
from sojourn.protocol.spec import TableSpec
from tests.coordinator.releases.release_material import ASKED, INT8, linear
from tests.coordinator.releases.task_jobs import KINDS, of_kind


@pytest.mark.parametrize("kind", KINDS)
def test_release_has_task_metrics_and_predicts_like_the_kit(kind: str) -> None:
    job = of_kind(kind)
    release = from_job(job.state, ASKED, *job.parts)
    card = release.card
    assert card.task
    assert card.task.kind == kind
    assert card.metrics
    assert next(iter(card.metrics)) == MAIN[card.task.kind]
    assert np.isnan(card.accuracy)
    assert release_from_blobs(release.card_bytes, release.graph, "here").goods == release.goods  # its probe holds
    x = job.test.arrays()[0][:20]
    answer = ReleasePredictor(release.graph, card).answer(x)
    graphs = Graphs(job.kit)
    np.testing.assert_allclose(answer.outputs, graphs.outputs(job.vector, x), rtol=1e-4, atol=1e-4)
    if kind == "reconstruction":
        losses = graphs.losses(job.vector, x, np.zeros(20, np.int64))
        np.testing.assert_allclose(np.asarray(answer.scores), losses, rtol=1e-4)
    assert list(whole(release).columns[0].cells)


def test_release_contains_column_names() -> None:
    job = of_kind("regression")
    kit, vector, *samples = job.parts
    table = TableSpec(tuple(f"column {at}" for at in range(kit.input.shape[0])))
    made = from_job(job.state, ASKED, msgspec.structs.replace(kit, table=table), vector, *samples)
    assert read_card(made.card_bytes, "here").table == table
    assert from_job(job.state, ASKED, *job.parts).card.table == job.kit.table


@pytest.mark.parametrize("kind", ["regression", "reconstruction", "tokens"])
def test_int8_loss_is_a_share_of_the_main_metric(kind: str) -> None:
    job = of_kind(kind)
    card = from_job(job.state, msgspec.structs.replace(INT8, max_loss=1.0), *job.parts).card
    plain = from_job(job.state, ASKED, *job.parts).card
    main = MAIN[card.learns.kind]
    assert card.metrics
    assert plain.metrics
    assert card.metrics[main] != plain.metrics[main]
    assert card.worse == pytest.approx(card.metrics[main] / plain.metrics[main] - 1)
    assert isnan(plain.worse)
    assert "outputs differ by at most" in card.checked


def test_int8_with_excessive_main_metric_loss_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.releases import quantising
    from tests.coordinator.releases.test_making import tampered

    job = of_kind("regression")
    monkeypatch.setattr(quantising, "quantised", lambda graph, _rows: tampered(graph, 50))
    with pytest.raises(ModelError, match=r"loses .* percent of RMSE .*release it as float32, or raise --max-loss"):
        from_job(job.state, INT8, *job.parts)


def test_predictions_and_scores_share_one_computation() -> None:
    job = of_kind("reconstruction")
    counts = [
        sum(node.op_type in ("Gemm", "MatMul") for node in onnx.load_from_string(each).graph.node)
        for each in (bake(job.kit, job.vector), bake(job.kit, job.vector, scored=True))
    ]
    assert counts[0] == counts[1] > 0
    with pytest.raises(ModelError, match="its own target"):
        bake(of_kind("regression").kit, of_kind("regression").vector, scored=True)


def test_card_threshold_is_quantile_of_normal_exemplars() -> None:
    job = of_kind("reconstruction")
    release = from_job(job.state, msgspec.structs.replace(ASKED, quantile=0.5), *job.parts)
    scores = ReleasePredictor(release.graph, release.card).answer(job.exemplars.arrays()[0]).scores
    assert release.card.anomaly
    assert release.card.anomaly.quantile == 0.5
    assert release.card.anomaly.threshold == pytest.approx(float(np.quantile(np.asarray(scores), 0.5, method="higher")))
    assert release.card.anomaly.samples == len(job.exemplars.y)
    of_test = from_job(job.state, ASKED, job.kit, job.vector, job.exemplars, None).card.anomaly
    assert of_test
    assert of_test.samples == len(job.exemplars.y)


def test_only_anomaly_cards_have_a_threshold() -> None:
    anomalies, values = (from_job(of_kind(kind).state, ASKED, *of_kind(kind).parts).card for kind in KINDS[2::-2])
    for card in (
        msgspec.structs.replace(anomalies, anomaly=None),
        msgspec.structs.replace(values, anomaly=anomalies.anomaly),
    ):
        with pytest.raises(DataError, match="must have a threshold of anomalies if"):
            read_card(pack_blob(card), "this")


def test_halves_keep_targets_and_faults_with_their_samples() -> None:
    job = of_kind("regression")
    first, rest = halves(job.test)
    x, y = job.test.packed()[0], job.test.expected()
    by_sample = {row.tobytes(): target.tolist() for row, target in zip(x, y, strict=True)}
    for half in (first, rest):
        pairs = zip(half.packed()[0], half.expected(), strict=True)
        assert all(by_sample[row.tobytes()] == target.tolist() for row, target in pairs)
    marked = Exemplars.of(x, np.zeros(len(x), np.int64))
    marked = msgspec.structs.replace(marked, faulty=tuple(range(0, len(x), 2)))
    found = [half.faulty_mask() for half in halves(marked)]
    assert sum(int(each.sum()) for each in found if each is not None) == len(range(0, len(x), 2))


def test_external_regressor_becomes_a_release(tmp_path: Any) -> None:
    from coordinator.releases.from_file import from_file
    from sojourn.data.source import DataSettings

    model, draw = linear(), np.random.default_rng(3)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    x = draw.standard_normal((60, 4)).astype(np.float32)
    weights, bias = (onnx.numpy_helper.to_array(each) for each in model.graph.initializer)
    np.savez(tmp_path / "s.npz", x_test=x, y_test=x @ weights + bias + 1)
    names = ("a", "b", "c")
    samples = DataSettings(path=str(tmp_path / "s.npz"))
    card = from_file(tmp_path / "m.onnx", Wanted("own", 1), samples, None, names).card
    assert card.task
    assert card.task.names == names
    assert card.metrics
    assert card.metrics["rmse"] == pytest.approx(1.0, rel=1e-4)
    assert card.table is None
    rows = np.c_[x @ weights + bias, x]
    (tmp_path / "s.csv").write_text("a,b,c,p,q,r,s\n" + "\n".join(",".join(map(str, row)) for row in rows))
    table = from_file(
        tmp_path / "m.onnx", Wanted("own", 1), DataSettings(path=str(tmp_path / "s.csv")), None, names
    ).card.table
    assert table == TableSpec(("p", "q", "r", "s"))
    bare = from_file(tmp_path / "m.onnx", Wanted("own", 1), None, None, names).card
    assert bare.metrics == {}
    with pytest.raises(ConfigError, match="2 targets were given"):
        from_file(tmp_path / "m.onnx", Wanted("own", 1), None, None, names[:2])
    with pytest.raises(ConfigError, match="int8 needs --samples"):
        from_file(tmp_path / "m.onnx", Wanted("own", 1, "int8"), None, None, names)
