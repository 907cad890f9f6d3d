"""The agent surveys its data in the training process, at its start and after changes."""

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

    from sojourn.protocol.data_summary import DataSurvey


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingProcess]:
    (tmp_path / "blobs").mkdir()
    workers = TrainingProcess(tmp_path / "blobs", DataSettings(path=str(tmp_path / "data.npz")))
    yield workers
    workers.close()


def test_data_that_appears_later_is_surveyed_again(tmp_path: Path, training: TrainingProcess) -> None:
    received: SimpleQueue[DataSurvey] = SimpleQueue()
    watch = DataWatch(training, DataSettings(path=str(tmp_path / "data.npz")), received.put, pause=0.05)
    try:
        assert "does not exist" in received.get(timeout=LIMIT).summary.fault
        np.savez(tmp_path / "half.npz", x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
        (tmp_path / "half.npz").rename(tmp_path / "data.npz")
        found = received.get(timeout=LIMIT)
    finally:
        watch.close()
    assert found.facts[0] == "20 samples of shape 2, float64, values 0 to 39"
    assert received.empty()


def test_data_is_not_read_while_owner_limits_object(tmp_path: Path, training: TrainingProcess) -> None:
    asked: SimpleQueue[str] = SimpleQueue()
    received: SimpleQueue[DataSurvey] = SimpleQueue()

    def objection() -> str:
        asked.put("once more")
        return "hours"

    data = DataSettings(path=str(tmp_path / "data.npz"))
    watch = DataWatch(training, data, received.put, objection=objection, pause=0.01)
    for _ in range(3):
        asked.get(timeout=LIMIT)
    watch.close()
    assert received.empty()
    assert training._child is None


def test_folder_mark_changes_when_a_file_is_added(tmp_path: Path) -> None:
    root = tmp_path / "images"
    assert mark_of(str(root)) == ()
    (root / "cat").mkdir(parents=True)
    before = mark_of(str(root))
    assert before == mark_of(str(root))
    (root / "cat" / "1.png").touch()
    assert mark_of(str(root)) != before
