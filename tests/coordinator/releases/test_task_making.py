"""Releases of jobs of every kind: compared with torch, measured by their own figures, and served from their graphs."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from coordinator.compiling.baking import bake
from coordinator.console.release_card import whole
from coordinator.releases.file import put_together, read_card
from coordinator.releases.making import Wanted, from_job
from coordinator.releases.quantising import halves
from sojourn.errors import ConfigError, DataError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.model.predictor import ReleasePredictor
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.figure_names import MAIN
from sojourn.protocol.spec import TableSpec
from tests.coordinator.releases.release_material import ASKED, INT8, linear
from tests.coordinator.releases.task_jobs import KINDS, of_kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_tells_the_figures_of_its_task_and_answers_as_the_kit_does(kind: str) -> None:
    job = of_kind(kind)
    release = from_job(job.state, ASKED, *job.parts)
    card = release.card
    assert card.task
    assert card.task.kind == kind
    assert card.figures
    assert next(iter(card.figures)) == MAIN[card.task.kind]
    assert np.isnan(card.accuracy)
    assert put_together(release.card_bytes, release.graph, "here").goods == release.goods  # its probe holds
    x = job.test.arrays()[0][:20]
    answer = ReleasePredictor(release.graph, card).answer(x)
    graphs = Graphs(job.kit)
    np.testing.assert_allclose(answer.outputs, graphs.outputs(job.vector, x), rtol=1e-4, atol=1e-4)
    if kind == "reconstruction":
        losses = graphs.losses(job.vector, x, np.zeros(20, np.int64))
        np.testing.assert_allclose(np.asarray(answer.scores), losses, rtol=1e-4)
    assert list(whole(release).columns[0].cells)


def test_a_release_carries_the_names_of_columns() -> None:
    job = of_kind("regression")
    kit, vector, *samples = job.parts
    table = TableSpec(tuple(f"column {at}" for at in range(kit.input.shape[0])))
    made = from_job(job.state, ASKED, msgspec.structs.replace(kit, table=table), vector, *samples)
    assert read_card(made.card_bytes, "here").table == table
    assert from_job(job.state, ASKED, *job.parts).card.table == job.kit.table


@pytest.mark.parametrize("kind", ["regression", "reconstruction", "tokens"])
def test_what_int8_costs_is_a_share_of_the_main_figure(kind: str) -> None:
    job = of_kind(kind)
    card = from_job(job.state, msgspec.structs.replace(INT8, max_loss=1.0), *job.parts).card
    plain = from_job(job.state, ASKED, *job.parts).card
    main = MAIN[card.learns.kind]
    assert card.figures
    assert plain.figures
    assert card.figures[main] != plain.figures[main]
    assert card.worse == pytest.approx(card.figures[main] / plain.figures[main] - 1)
    assert plain.worse is msgspec.UNSET
    assert "answers differ by at most" in card.checked


def test_int8_that_costs_too_much_is_refused_by_the_main_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.releases import quantising
    from tests.coordinator.releases.test_making import tampered

    job = of_kind("regression")
    monkeypatch.setattr(quantising, "quantised", lambda graph, _rows: tampered(graph, 50))
    with pytest.raises(ModelError, match=r"loses .* percent of RMSE .*ship it as float32, or raise --max-loss"):
        from_job(job.state, INT8, *job.parts)


def test_answers_and_scores_are_computed_once() -> None:
    job = of_kind("reconstruction")
    counts = [
        sum(node.op_type in ("Gemm", "MatMul") for node in onnx.load_from_string(each).graph.node)
        for each in (bake(job.kit, job.vector), bake(job.kit, job.vector, scored=True))
    ]
    assert counts[0] == counts[1] > 0
    with pytest.raises(ModelError, match="its own target"):
        bake(of_kind("regression").kit, of_kind("regression").vector, scored=True)


def test_the_cards_threshold_is_a_quantile_of_normal_exemplars() -> None:
    job = of_kind("reconstruction")
    release = from_job(job.state, msgspec.structs.replace(ASKED, quantile=0.5), *job.parts)
    scores = ReleasePredictor(release.graph, release.card).answer(job.shown.arrays()[0]).scores
    assert release.card.anomaly
    assert release.card.anomaly.quantile == 0.5
    assert release.card.anomaly.threshold == pytest.approx(float(np.quantile(np.asarray(scores), 0.5, method="higher")))
    assert release.card.anomaly.samples == len(job.shown.y)
    of_test = from_job(job.state, ASKED, job.kit, job.vector, job.shown, None).card.anomaly
    assert of_test
    assert of_test.samples == len(job.shown.y)


def test_a_card_of_anomalies_needs_a_threshold_and_others_have_none() -> None:
    anomalies, values = (from_job(of_kind(kind).state, ASKED, *of_kind(kind).parts).card for kind in KINDS[2::-2])
    for card in (
        msgspec.structs.replace(anomalies, anomaly=msgspec.UNSET),
        msgspec.structs.replace(values, anomaly=anomalies.anomaly),
    ):
        with pytest.raises(DataError, match="names a threshold of anomalies for a reconstruction"):
            read_card(pack_blob(card), "this")


def test_halves_keep_targets_and_faults_with_their_samples() -> None:
    job = of_kind("regression")
    first, rest = halves(job.test)
    x, y = job.test.packed()[0], job.test.compared()
    by_sample = {row.tobytes(): target.tolist() for row, target in zip(x, y, strict=True)}
    for half in (first, rest):
        pairs = zip(half.packed()[0], half.compared(), strict=True)
        assert all(by_sample[row.tobytes()] == target.tolist() for row, target in pairs)
    marked = Exemplars.of(x, np.zeros(len(x), np.int64))
    marked = msgspec.structs.replace(marked, faulty=tuple(range(0, len(x), 2)))
    found = [half.marked() for half in halves(marked)]
    assert sum(int(each.sum()) for each in found if each is not None) == len(range(0, len(x), 2))


def test_a_regressor_that_was_made_elsewhere(tmp_path: Any) -> None:
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
    assert card.figures
    assert card.figures["rmse"] == pytest.approx(1.0, rel=1e-4)
    assert card.table is msgspec.UNSET
    rows = np.c_[x @ weights + bias, x]
    (tmp_path / "s.csv").write_text("a,b,c,p,q,r,s\n" + "\n".join(",".join(map(str, row)) for row in rows))
    table = from_file(
        tmp_path / "m.onnx", Wanted("own", 1), DataSettings(path=str(tmp_path / "s.csv")), None, names
    ).card.table
    assert table == TableSpec(("p", "q", "r", "s"))
    bare = from_file(tmp_path / "m.onnx", Wanted("own", 1), None, None, names).card
    assert bare.figures is msgspec.UNSET
    with pytest.raises(ConfigError, match="2 targets were named"):
        from_file(tmp_path / "m.onnx", Wanted("own", 1), None, None, names[:2])
    with pytest.raises(ConfigError, match="int8 needs --samples"):
        from_file(tmp_path / "m.onnx", Wanted("own", 1, "int8"), None, None, names)
