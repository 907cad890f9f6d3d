"""The agent looks at its data when it starts and when it has changed, in the training process."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edge_agent.training.data_watch import DataWatch, mark_of
from edge_agent.training.process import TrainingProcess
from sojourn.data.source import DataSettings
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sojourn.data.data_survey import DataSurvey


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingProcess]:
    (tmp_path / "blobs").mkdir()
    workers = TrainingProcess(tmp_path / "blobs", DataSettings(path=str(tmp_path / "data.npz")))
    yield workers
    workers.close()


def test_data_that_comes_later_is_looked_at_again(tmp_path: Path, training: TrainingProcess) -> None:
    heard: SimpleQueue[DataSurvey] = SimpleQueue()
    watch = DataWatch(training, DataSettings(path=str(tmp_path / "data.npz")), heard.put, pause=0.05)
    try:
        assert "does not exist" in heard.get(timeout=LIMIT).summary.fault
        np.savez(tmp_path / "half.npz", x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
        (tmp_path / "half.npz").rename(tmp_path / "data.npz")
        found = heard.get(timeout=LIMIT)
    finally:
        watch.close()
    assert found.facts[0] == "20 samples of shape 2, float64, values 0 to 39"
    assert heard.empty()


def test_nothing_is_read_while_the_owners_limits_object(tmp_path: Path, training: TrainingProcess) -> None:
    asked: SimpleQueue[str] = SimpleQueue()
    heard: SimpleQueue[DataSurvey] = SimpleQueue()

    def objection() -> str:
        asked.put("once more")
        return "hours"

    data = DataSettings(path=str(tmp_path / "data.npz"))
    watch = DataWatch(training, data, heard.put, objection=objection, pause=0.01)
    for _ in range(3):
        asked.get(timeout=LIMIT)
    watch.close()
    assert heard.empty()
    assert training._child is None


def test_what_changes_when_data_does(tmp_path: Path) -> None:
    root = tmp_path / "images"
    assert mark_of(str(root)) == ()
    (root / "cat").mkdir(parents=True)
    before = mark_of(str(root))
    assert before == mark_of(str(root))
    (root / "cat" / "1.png").touch()
    assert mark_of(str(root)) != before
