"""`Model`: its predictions, the automatic switch to a new release, and the handling of a broken release."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto

import edge_agent
from edge_agent.inference import model as module
from edge_agent.inference.model import MAX_QUEUED, Counts, Model
from edge_agent.inference.usage import UsageTally
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.releases.orders import Usage
from sojourn.errors import ConfigError, DataError, ModelError, NoRelease
from sojourn.model.predictions import BatchOutput
from sojourn.protocol.release import ProbeCheck
from sojourn.protocol.spec import InputSpec
from tests.edge_agent.releases.releases_made import CLASSES, LINE, Shop, card_of, graph_of, weights_of
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(module, "LOOK_PAUSE", 0.02)
    monkeypatch.setattr(module, "_REPORT_INTERVAL", 0.05)
    monkeypatch.delenv("SOJOURN_STORE", raising=False)
    yield Shop(tmp_path / "store")
    module._close_all()


def test_predict_takes_one_sample_or_a_batch(shop: Shop) -> None:
    shop.serve(3)
    with edge_agent.Model(LINE, shop.store) as model:
        assert model.version == 3
        assert model.card.classes == CLASSES
        np.testing.assert_array_equal(model.predict(np.array([0, 1, 0], np.float32)), [0, 3, 0])
        np.testing.assert_array_equal(model.predict(np.eye(3, dtype=np.float32)), 3 * np.eye(3))
        assert model.predict(np.eye(3)).dtype == np.float32
        assert model.predict(np.empty((0, 3))).shape == (0, 3)
        assert model.classify([0, 0, 1]) == "owl"
        assert model.classify([[1, 0, 0], [0, 1, 0]]) == ["cat", "dog"]
        version, classes, shares = model.probabilities([0, 1, 0])
        assert (version, classes) == (3, CLASSES)
        np.testing.assert_allclose(shares, np.exp([0, 3, 0]) / np.exp([0, 3, 0]).sum())


def test_files_and_other_layouts_are_classified(shop: Shop, tmp_path: Path) -> None:
    shop.serve(3)
    (tmp_path / "rows.csv").write_text("a,b,c,label\n0,0,1,owl\n1,0,0,cat\n")
    with Model(LINE, shop.store) as model:
        assert model.classify(tmp_path / "rows.csv") == ["owl", "cat"]
        assert model.classify(np.array([[0], [1], [0]], np.uint8)) == "dog"


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64", ">f4"])
def test_any_real_dtype_is_accepted(shop: Shop, dtype: str) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model:
        np.testing.assert_array_equal(model.predict(np.eye(3).astype(dtype)), np.eye(3))


@pytest.mark.parametrize(
    "x", [[1, 2], [[1, 2], [3, 4]], np.zeros((2, 2, 3)), "abc", [[1, 2, 3], [1, 2]], np.array([1j, 0, 0]), None, 5.0]
)
def test_invalid_input_is_a_data_error(shop: Shop, x: Any) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model, pytest.raises(DataError):
        model.predict(x)


def test_integer_model_rejects_fractions(shop: Shop) -> None:
    probe = ProbeCheck(1, np.zeros(3, "<i8").tobytes(), np.zeros(3, "<f4").tobytes(), 0.0)
    card = card_of(1, input=InputSpec((3,), "int64"), probe=probe)
    shop.serve(1, graph=graph_of(weights_of(1), TensorProto.INT64), card=card)
    with Model(LINE, shop.store) as model:
        np.testing.assert_array_equal(model.predict([1.0, 0.0, 2.0]), [1, 0, 2])
        with pytest.raises(DataError, match="whole numbers"):
            model.predict([0.5, 0, 0])


def test_missing_release_error_suggests_the_rollout_command(shop: Shop) -> None:
    with pytest.raises(NoRelease, match="sojourn release rollout"):
        Model(LINE, shop.store)
    with pytest.raises(ConfigError, match="line"):
        Model("../etc", shop.store)


def test_store_is_found_by_default_option_or_environment(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    with pytest.raises(NoRelease):
        Model(LINE)
    Shop(tmp_path / "home" / "sojourn" / "sojourn" / "pi-1").serve(1)
    Shop(tmp_path / "home" / "sojourn" / "farm" / "pi-1").serve(2)
    shop.serve(4)
    for options, version in (({}, 1), ({"fleet": "farm"}, 2), ({"store": str(shop.store)}, 4)):
        with Model(LINE, **options) as model:  # type: ignore[arg-type]
            assert model.version == version
    Shop(tmp_path / "home" / "sojourn" / "sojourn" / "pi-2").serve(3)
    with pytest.raises(ConfigError, match="several agents"):
        Model(LINE)
    with Model(LINE, agent="pi-2") as model:
        assert model.version == 3
    monkeypatch.setenv("SOJOURN_STORE", str(shop.store))
    with Model(LINE) as model:
        assert model.version == 4


def test_releases_swap_while_four_threads_predict(shop: Shop) -> None:
    """The largest logit is the version, which never decreases; no call fails."""
    shop.serve(1)
    seen: list[list[float]] = [[] for _ in range(4)]
    failed: list[BaseException] = []
    stop = threading.Event()

    def work(mine: list[float]) -> None:
        x = np.eye(3, dtype=np.float32)
        try:
            while not stop.is_set():
                logits = model.predict(x)
                assert np.array_equal(logits, logits[0, 0] * x)
                mine.append(float(logits[0, 0]))
        except BaseException as error:  # noqa: BLE001  # a thread's failure is this test's
            failed.append(error)

    with Model(LINE, shop.store) as model:
        threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        for version in range(2, 12):
            shop.serve(version)
            wait_until(lambda wanted=version: model.version == wanted, f"version {version}")  # type: ignore[misc]
        wait_until(lambda: failed or all(mine and mine[-1] == 11 for mine in seen), "predictions of the last version")
        stop.set()
        for thread in threads:
            thread.join(LIMIT)
    assert failed == []
    for mine in seen:
        assert mine == sorted(mine)


def damage(shop: Shop, name: str) -> None:
    """Replace a file that blobs and releases share by a copy with a flipped byte."""
    path = shop.folder.path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.unlink()
    path.write_bytes(data)


class Ear:
    """The agent's end of the socket."""

    def __init__(self, shop: Shop) -> None:
        self._usages: SimpleQueue[Usage] = SimpleQueue()
        self.listener = UsageListener(shop.store, self._usages.put, pause=0.1)

    def next(self) -> Usage:
        return self._usages.get(timeout=LIMIT)

    def until_predictions(self, count: int) -> Usage:
        while (usage := self.next()).health.predictions < count:
            pass
        return usage


@pytest.fixture
def ear(shop: Shop) -> Iterator[Ear]:
    ear = Ear(shop)
    yield ear
    ear.listener.close()


@pytest.mark.parametrize("which", ["graph", "card"])
def test_damaged_release_is_skipped_and_reported_to_the_agent(shop: Shop, ear: Ear, which: str) -> None:
    shop.serve(1)
    second = shop.serve(2)
    damage(shop, getattr(second, which))
    with Model(LINE, shop.store) as model:
        assert model.version == 1
        np.testing.assert_array_equal(model.predict([1, 0, 0]), [1, 0, 0])
        usage = ear.next()
        assert (usage.version, "damaged" in usage.failure) == (2, True)
        shop.serve(3)
        wait_until(lambda: model.version == 3, "the next version")


def test_unloadable_release_during_use_changes_nothing(shop: Shop, ear: Ear) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model:
        shop.serve(2, graph=b"no graph at all")
        usage = ear.next()
        assert (usage.version, usage.failure != "") == (2, True)
        assert model.version == 1
        shop.serve(1)
        wait_until(lambda: model._failure is None, "a release that loads")
        assert model.version == 1


def test_load_failure_is_reported_once_a_listener_starts(shop: Shop) -> None:
    shop.serve(1)
    damage(shop, shop.serve(2).graph)
    with Model(LINE, shop.store):
        ear = Ear(shop)
        usage = ear.next()
        ear.listener.close()
    assert (usage.version, "damaged" in usage.failure) == (2, True)


def test_damaged_current_file_falls_back(shop: Shop) -> None:
    shop.serve(1)
    shop.serve(2)
    (shop.folder.path / "current").write_bytes(b"{")
    with Model(LINE, shop.store) as model:
        assert model.version == 1


def test_both_reasons_are_reported_when_neither_release_loads(shop: Shop) -> None:
    damage(shop, shop.serve(1).graph)
    with pytest.raises(ModelError, match="no previous release"):
        Model(LINE, shop.store)
    damage(shop, shop.serve(2).graph)
    with pytest.raises(ModelError, match=r"v2-.*the previous release cannot.*v1-"):
        Model(LINE, shop.store)


def test_withdrawn_line_stops_predicting_until_the_next_release(shop: Shop) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model:
        shop.folder.withdraw()
        wait_until(lambda: model._serving is None, "the end of the line")
        with pytest.raises(NoRelease):
            model.predict([1, 0, 0])
        shop.serve(2)
        wait_until(lambda: model._serving is not None, "the next release")
        assert model.version == 2


def test_predictions_are_counted_exactly(shop: Shop, ear: Ear) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model:
        for _ in range(30):
            model.predict([1, 0, 0])
        model.predict(np.repeat(np.eye(3, dtype=np.float32), 10, axis=0))
        usage = ear.until_predictions(60)
        assert usage.health.predictions == 60
        assert usage.health.mix == pytest.approx((40 / 60, 10 / 60, 10 / 60))
        assert usage.health.live is not None
        model.report_error("that was a dog")
        while not usage.health.errors:
            usage = ear.next()
        assert usage.health.errors == 1


def test_usage_is_kept_until_a_listener_starts(shop: Shop) -> None:
    shop.serve(1)
    with Model(LINE, shop.store) as model:
        for _ in range(70):
            model.predict([1, 0, 0])
        model.report_error()
        wait_until(lambda: model._unreported.get(1, UsageTally()).predictions == 70, "all predictions to be counted")
        ear = Ear(shop)
        usage = ear.until_predictions(70)
        ear.listener.close()
    assert (usage.health.predictions, usage.health.errors) == (70, 1)


def test_exiting_script_reports_its_usage(shop: Shop, ear: Ear) -> None:
    shop.serve(1)
    program = f"import edge_agent; m = edge_agent.Model({LINE!r}, {str(shop.store)!r}); m.predict([[1, 0, 0]] * 55)"
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert ear.until_predictions(55).health.predictions == 55


def test_counts_are_sampled_beyond_the_limit(shop: Shop) -> None:
    counts, tally = Counts(1), UsageTally()
    for _ in range(MAX_QUEUED + 100):
        counts.add(1000, BatchOutput(np.array([[0, 1, 0]], np.float32)))
    counts.move_to(tally)
    assert (tally.predictions, tally.classes.total(), tally.times.total()) == (MAX_QUEUED + 100, MAX_QUEUED, MAX_QUEUED)


def test_high_classes_share_one_bin_and_batches_count_by_class() -> None:
    counts, tally = Counts(1), UsageTally()
    logits = np.zeros((3, 2000), np.float32)
    logits[[0, 1, 2], [7, 999, 1500]] = 1
    counts.add(3000, BatchOutput(logits))
    counts.move_to(tally)
    assert tally.classes == {7: 1, 999: 1, 1000: 1}
    assert tally.predictions == 3
    assert tally.times == {0: 1}


def test_unused_model_is_collected_with_its_thread(shop: Shop) -> None:
    shop.serve(1)
    model = Model(LINE, shop.store)
    thread, gone = model._thread, weakref.ref(model)
    del model
    gc.collect()
    thread.join(LIMIT)
    assert gone() is None
    assert not thread.is_alive()


def test_forked_child_switches_to_the_next_release(shop: Shop) -> None:
    shop.serve(1)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    with Model(LINE, shop.store) as model:

        def child() -> None:
            wait_until(lambda: model.version == 2, "the next version")
            theirs.send(model.predict([1, 0, 0]).tolist())

        process = fork.Process(target=child)
        process.start()
        shop.serve(2)
        assert ours.poll(LIMIT)
        assert ours.recv() == [2, 0, 0]
        process.join(LIMIT)
