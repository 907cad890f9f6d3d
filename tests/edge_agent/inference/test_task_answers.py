"""Predictions of releases of every task: in Python, over HTTP and in a terminal."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.commands import app
from edge_agent.inference import model as module
from edge_agent.inference.endpoint import PredictionApi
from edge_agent.inference.inputs_and_outputs import value_names
from edge_agent.inference.model import Model
from edge_agent.inference.usage import UsageTally
from edge_agent.releases.folder import Threshold
from sojourn.errors import DataError
from sojourn.protocol.task import Strata, TaskSpec
from tests.edge_agent.releases.releases_made import LINE, Shop
from tests.edge_agent.releases.task_releases import forecast, multilabel, reconstruction, regression, tokens
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(module, "LOOK_PAUSE", 0.02)
    yield Shop(tmp_path / "store")
    module._close_all()


def printed(shop: Shop, file: Path, *more: str) -> str:
    done = CliRunner().invoke(app, ["predict", LINE, str(file), "--store", str(shop.store), *more])
    if done.exception:
        raise done.exception
    return done.stdout


def test_regression_values_are_named(shop: Shop, tmp_path: Path) -> None:
    shop.serve(1, **regression())
    with Model(LINE, shop.store) as model:
        assert model.answers([3, 1, 0]) == {"values": {"temperature": 3.0, "load": 2.0}}
        assert model.answers(np.zeros((2, 3), np.float32)) == [{"values": {"temperature": 0.0, "load": 0.0}}] * 2
        np.testing.assert_array_equal(model.predict([3, 1, 0]), [3, 2])
        assert model.threshold == inf
        with pytest.raises(DataError, match="a release for regression, not for classification"):
            model.classify([3, 1, 0])
        with pytest.raises(DataError, match="not for reconstruction"):
            model.score([3, 1, 0])
    (tmp_path / "x.csv").write_text("a,b,c,temperature,load\n3,1,0,99,99\n")
    assert printed(shop, tmp_path / "x.csv") == "     0  temperature 3   load 2\n"


def test_unnamed_values_are_numbered() -> None:
    assert value_names(TaskSpec("regression", (1,), None, Strata(1))) == ("value",)
    assert value_names(TaskSpec("regression", (2,), None, Strata(1))) == ("value-1", "value-2")


def test_forecast_uses_the_newest_steps_of_a_series(shop: Shop, tmp_path: Path) -> None:
    shop.serve(1, **forecast())
    with Model(LINE, shop.store) as model:
        assert model.answers([1, 2, 3, 4, 5]) == {"values": {"load": [5.0, 5.0]}}
        assert model.answers(np.arange(6, dtype=np.float32).reshape(2, 3, 1)) == [
            {"values": {"load": [2.0, 2.0]}}, {"values": {"load": [5.0, 5.0]}}
        ]  # fmt: skip
        with pytest.raises(DataError, match="2 steps since the last gap; the model needs 3"):
            model.answers([1, 2])
    (tmp_path / "series.csv").write_text("load\n" + "\n".join(map(str, range(10))) + "\n")
    assert printed(shop, tmp_path / "series.csv") == "     0  load 9 9\n"


def test_each_label_has_its_own_score(shop: Shop, tmp_path: Path) -> None:
    shop.serve(1, **multilabel())
    with Model(LINE, shop.store) as model:
        found = model.answers([2, -2, 0])
    assert isinstance(found, dict)
    assert found["labels"] == ["cat"]
    assert found["scores"]["cat"] == pytest.approx(0.8808, abs=1e-4)
    assert found["scores"]["owl"] == 0.5
    np.save(tmp_path / "x.npy", [2.0, -2.0, 0.0])
    assert printed(shop, tmp_path / "x.npy") == "     0  + cat 88.1 %   - owl 50.0 %   - dog 11.9 %\n"


def test_next_token_is_listed_with_the_likeliest_alternatives(shop: Shop, tmp_path: Path) -> None:
    shop.serve(1, **tokens())
    with Model(LINE, shop.store) as model:
        found = model.answers([0, 0, 0, 0, 1, 2], top=2)
    assert isinstance(found, dict)
    assert found["token"] == 3
    assert found["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 3))
    assert [each["token"] for each in found["top"]] == [3, 2]
    np.save(tmp_path / "x.npy", np.array([0, 1, 2]))
    assert printed(shop, tmp_path / "x.npy", "--top", "1") == "     0  3 71.1 %\n"


def test_score_is_compared_with_the_local_threshold(shop: Shop, tmp_path: Path) -> None:
    served = shop.serve(1, **reconstruction())
    with Model(LINE, shop.store) as model:
        assert model.threshold == 7.0  # the card's
        assert model.score([3, 0, 0]) == (3.0, 7.0, False)
        shop.folder.keep_threshold(served, Threshold(2.0, 0.9, 100))
        wait_until(lambda: model.threshold == 2.0, "the new threshold")
        assert model.score([[3, 0, 0], [1, 1, 1]]) == [(3.0, 2.0, True), (1.0, 2.0, False)]
        assert model.score(np.full(3, np.nan)).anomalous  # type: ignore[union-attr]
        assert model.score(np.zeros((0, 3), np.float32)) == []
    np.save(tmp_path / "x.npy", np.array([[3.0, 0, 0], [0, 0, 0]]))
    assert printed(shop, tmp_path / "x.npy").splitlines() == [
        "     0  score 3   threshold 2   ANOMALY",
        "     1  score 0   threshold 2   normal",
    ]
    printed_json: Any = msgspec.json.decode(printed(shop, tmp_path / "x.npy", "--json"))
    assert printed_json["task"] == "reconstruction"
    assert printed_json["rows"][0] == {"score": 3.0, "threshold": 2.0, "anomalous": True}


def test_usage_of_a_scoring_model_counts_anomalies(shop: Shop) -> None:
    shop.serve(1, **reconstruction())
    with Model(LINE, shop.store) as model:
        model.score([[9, 9, 9], [0, 0, 0], [0, 0, 1]])
        tally = UsageTally()
        model._in_use().counts.move_to(tally)
    assert tally.classes == {0: 2, 1: 1}


def test_http_api_returns_scores_and_thresholds(shop: Shop) -> None:
    shop.serve(1, **reconstruction())
    api = PredictionApi(shop.store)
    assert api.lines() == {"lines": [{"line": LINE, "version": 1, "task": "reconstruction", "classes": ()}]}
    assert api.card(LINE)["threshold"] == 7.0
    found = api.predict(LINE, "application/json", b'{"x": [[3, 0, 0]]}')
    assert found == {
        "line": LINE, "version": 1, "task": "reconstruction",
        "answers": [{"score": 3.0, "threshold": 7.0, "anomalous": False}],
    }  # fmt: skip
