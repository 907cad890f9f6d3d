"""Trials of releases for other tasks than classification: metrics, drift, and the measured threshold."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.releases.folder import Threshold
from edge_agent.releases.installing import Installer, Trial, Tried
from edge_agent.releases.trial import tried
from sojourn.data.source import DataSettings
from sojourn.protocol.release import HealthRules, ProbeScores, complaint
from tests.edge_agent.releases.releases_made import CLASSES, LINE, Shop, card_of, graph_of
from tests.edge_agent.releases.task_releases import forecast, multilabel, reconstruction, regression, tokens

NOWHERE = DataSettings(path="/does/not/exist.npz")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def trial(shop: Shop, release: dict[str, Any], data: DataSettings = NOWHERE, before: Any = None) -> Tried:
    served = shop.served(release["card"].version, **release)
    shop.folder.place(served, shop.store / "blobs")
    return tried(Trial(str(shop.store), served, before, data, 60.0))


def saved(folder: Path, **arrays: Any) -> DataSettings:
    np.savez(folder / "data.npz", **arrays)
    return DataSettings(path=str(folder / "data.npz"))


@pytest.mark.parametrize("made", [regression, multilabel, forecast, tokens, reconstruction])
def test_every_task_is_tried_on_probe_rows_without_data(shop: Shop, made: Any) -> None:
    found = trial(shop, made())
    assert found.objection is None
    assert found.health.task
    assert isnan(found.health.task.metric)
    assert isnan(found.health.accuracy)


def test_regression_is_measured_by_rmse_and_compared(shop: Shop, tmp_path: Path) -> None:
    data = saved(tmp_path, x=np.eye(3, dtype=np.float32)[:2], y=np.array([[1.0, 0.0], [0.0, 2.0]]))
    before = shop.serve(1, **regression(1))
    health = trial(shop, regression(2, [[1, 0], [0, 6], [0, 0]]), data, before).health
    assert health.task
    assert (health.task.measure, health.task.before) == ("rmse", 0.0)
    assert health.task.metric == 2.0  # one of four values is off by 4
    assert health.drift == 0.0
    assert complaint(health, HealthRules()) == "RMSE became worse by inf % on 2 local samples (0 to 2)"


def test_values_moving_to_another_stratum_count_as_drift(shop: Shop) -> None:
    before = shop.serve(1, **regression(1))
    health = trial(shop, regression(2, np.full((3, 2), 9.0)), before=before).health
    assert health.drift == 1.0
    assert complaint(health, HealthRules()) == "the mix of predicted answers moved by 100 % on the same inputs"


def test_release_of_another_task_is_not_compared(shop: Shop) -> None:
    before = shop.serve(1, np.eye(3), card=card_of(1, np.eye(3), classes=CLASSES))
    found = trial(shop, regression(2), before=before)
    assert found.objection is None
    assert found.health.pace_before is None


def test_threshold_is_a_quantile_of_local_scores(shop: Shop, tmp_path: Path) -> None:
    x = np.sqrt(3 * np.arange(1, 101))[:, None] * np.eye(3)[0]  # scores of 1 to 100
    found = trial(shop, reconstruction(), saved(tmp_path, x=x.astype(np.float32)))
    assert found.threshold is not None
    assert found.threshold.value == pytest.approx(91.0)  # `higher`: 90 of 100 are below, and no more than 0.1 above
    assert (found.threshold.quantile, found.threshold.samples) == (0.9, 100)
    assert found.health.task
    assert found.health.task.threshold == found.threshold.value
    assert found.health.task.metric == pytest.approx(50.5)


def test_samples_labelled_faulty_do_not_raise_the_threshold(shop: Shop, tmp_path: Path) -> None:
    x = np.sqrt(3 * np.arange(1, 101))[:, None] * np.eye(3)[0]
    y = np.array(["normal"] * 50 + ["broken"] * 50)
    made = reconstruction(task=msgspec.structs.replace(reconstruction()["card"].task, normal=("normal",)))
    found = trial(shop, made, saved(tmp_path, x=x.astype(np.float32), y=y))
    assert found.threshold is not None
    assert found.threshold.value == pytest.approx(46.0, abs=0.1)


@pytest.mark.parametrize("rows", [0, 5])
def test_card_threshold_is_used_with_too_little_data(shop: Shop, tmp_path: Path, rows: int) -> None:
    data = saved(tmp_path, x=np.ones((rows, 3), np.float32)) if rows else NOWHERE
    assert trial(shop, reconstruction(), data).threshold == Threshold(7.0, 0.9, 0)


def test_scores_must_match_the_card_probe(shop: Shop) -> None:
    made = reconstruction()
    other = msgspec.structs.replace(made["card"].probe, scores=ProbeScores(np.ones(3, "<f4").tobytes(), 1e-4))
    made["card"] = msgspec.structs.replace(made["card"], probe=other)
    assert "the scores of release 1 of animals on this machine differ by up to 2 " in str(trial(shop, made).objection)
    none = msgspec.structs.replace(other, scores=None)
    made["card"] = msgspec.structs.replace(made["card"], probe=none)
    assert "no valid scores to compare with" in str(trial(shop, made).objection)
    without = {"graph": graph_of(np.eye(3), output="outputs"), "card": made["card"]}
    assert "it returns outputs instead of outputs and score" in str(trial(shop, without).objection)


def test_non_finite_scores_are_rejected(shop: Shop, tmp_path: Path) -> None:
    data = saved(tmp_path, x=np.full((30, 3), 3e38, np.float32))
    assert "no finite score for 30 of 30" in str(trial(shop, reconstruction(), data).objection)


def test_installed_release_keeps_its_threshold_until_removed(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Installer, "_try", lambda _installer, trial, _turn: tried(trial))  # without a child process
    x = np.sqrt(3 * np.arange(1, 101))[:, None] * np.eye(3)[0]
    install = Installer(shop.store, shop.store / "blobs", saved(tmp_path, x=x.astype(np.float32)))
    for version in (1, 2, 3):
        install(shop.install(version, **reconstruction(version, scale=float(version))))
    current, previous = shop.folder.current(), shop.folder.previous()
    assert current
    assert previous
    kept = [shop.folder.threshold(each) for each in (current, previous)]
    assert [each.value for each in kept if each] == [pytest.approx(273.0), pytest.approx(182.0)]
    assert len(list((shop.store / "release" / LINE).glob("*.threshold"))) == 2


def test_threshold_is_updated_only_when_the_data_changes(shop: Shop, tmp_path: Path) -> None:
    x = np.sqrt(3 * np.arange(1, 101))[:, None] * np.eye(3)[0]
    data = saved(tmp_path, x=x.astype(np.float32))
    installer = Installer(shop.store, shop.store / "blobs", data)
    installer(shop.install(1, **reconstruction()))
    served = shop.folder.current()
    assert served
    was, at = shop.folder.threshold(served), shop.folder.identity()
    installer.refresh_thresholds()
    assert shop.folder.identity() == at
    saved(tmp_path, x=(2 * x[:50]).astype(np.float32))
    installer.refresh_thresholds()
    now = shop.folder.threshold(served)
    assert was
    assert now
    assert now.samples == 50
    assert now.value == pytest.approx(4 * 46.0)
    assert now.data != was.data
    assert shop.folder.identity() != at  # programs reload it
    (tmp_path / "data.npz").unlink()
    installer.refresh_thresholds()
    assert shop.folder.threshold(served) == now  # the earlier threshold is kept
