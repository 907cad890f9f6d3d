"""The trial of a release: its objections and its measurements."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto

from edge_agent.releases.installing import Trial, Tried
from edge_agent.releases.trial import inputs_for, tried
from sojourn.data.source import DataSettings, load_data
from sojourn.protocol.release import ProbeCheck
from sojourn.protocol.spec import InputSpec
from tests.edge_agent.releases.releases_made import CLASSES, Shop, card_of, graph_of, weights_of

NOWHERE = DataSettings(path="/does/not/exist.npz")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def trial(shop: Shop, data: DataSettings = NOWHERE, *, before: Any = None, **release: Any) -> Tried:
    served = shop.served(2, **release)
    shop.folder.place(served, shop.store / "blobs")
    return tried(Trial(str(shop.store), served, before, data, 60.0))


def objection(shop: Shop, **release: Any) -> str:
    found = trial(shop, **release).objection
    assert found is not None
    return found


def test_probe_rows_are_timed_without_suitable_local_data(shop: Shop) -> None:
    found = trial(shop)
    assert found.objection is None
    assert found.health.rows == 3
    assert isnan(found.health.accuracy)
    assert found.health.pace is not None


def test_graph_must_match_the_card(shop: Shop) -> None:
    assert "shape ['rows', 4]" in objection(shop, graph=graph_of(np.eye(4, 3)))
    assert "shape ['rows', 2]" in objection(shop, graph=graph_of(np.eye(3, 2)))
    assert "shape [1, 3]" in objection(shop, graph=graph_of(weights_of(2), rows=1))
    assert "tensor(int64)" in objection(shop, graph=graph_of(weights_of(2), TensorProto.INT64))
    assert "returns scores instead of logits" in objection(shop, graph=graph_of(weights_of(2), output="scores"))
    assert "belongs to release 7" in objection(shop, card=card_of(7))


def test_differing_predictions_are_rejected_with_max_difference(shop: Shop) -> None:
    off = weights_of(2) + np.array([[0, 0, 0], [0, 0.25, 0], [0, 0, 0]], np.float32)
    assert "up to 0.25 " in objection(shop, graph=graph_of(off))
    assert trial(shop, graph=graph_of(off), card=card_of(2, atol=0.3)).objection is None


def test_nan_prediction_is_rejected_at_any_tolerance(shop: Shop) -> None:
    broken = weights_of(2)
    broken[0, 0] = nan
    assert "up to nan" in objection(shop, graph=graph_of(broken), card=card_of(2, atol=1e9))


@pytest.mark.parametrize("cut", [{"x": b"1234"}, {"logits": b"1234"}, {"rows": 0}])
def test_truncated_probe_is_rejected(shop: Shop, cut: dict[str, Any]) -> None:
    card = card_of(2)
    probe = msgspec.structs.replace(card.probe, **cut)
    assert "the card of release 2" in objection(shop, card=msgspec.structs.replace(card, probe=probe))


def test_classes_are_compared_by_name(shop: Shop, tmp_path: Path) -> None:
    """The earlier release lists the classes in reverse order, with the same predictions."""
    np.savez(tmp_path / "data.npz", x=np.eye(3, dtype=np.float32), y=np.array(CLASSES))
    turned = weights_of(1)[:, ::-1]
    before = shop.serve(1, turned, card=card_of(1, turned, classes=CLASSES[::-1]))
    health = trial(shop, DataSettings(path=str(tmp_path / "data.npz")), before=before).health
    assert (health.accuracy, health.accuracy_before, health.drift) == (1.0, 1.0, 0.0)


def test_unloadable_previous_release_does_not_fail_the_new_one(shop: Shop) -> None:
    before = shop.serve(1)
    (shop.folder.path / before.graph).write_bytes(b"damaged")
    found = trial(shop, before=before)
    assert found.objection is None
    assert found.health.pace is not None
    assert found.health.pace_before is None


def test_large_data_set_is_sampled_at_256_spread_rows(tmp_path: Path) -> None:
    x = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 3, axis=1)
    np.savez(tmp_path / "data.npz", x=x, y=np.repeat("cat", 1000))
    data = DataSettings(path=str(tmp_path / "data.npz"))
    inputs = inputs_for(card_of(1), load_data(data, card_of(1)))
    assert inputs.x.shape == (256, 3)
    assert (inputs.x[0, 0], inputs.x[-1, 0]) == (0, 999)
    assert inputs.y is not None
    assert set(inputs.y) == {0}


def test_integer_input_is_probed_with_integers(shop: Shop) -> None:
    x = np.eye(3, dtype="<i8")
    probe = ProbeCheck(3, x.tobytes(), weights_of(2).astype("<f4").tobytes(), 1e-6)
    card = card_of(2, input=InputSpec((3,), "int64"), probe=probe)
    assert trial(shop, graph=graph_of(weights_of(2), TensorProto.INT64), card=card).objection is None
