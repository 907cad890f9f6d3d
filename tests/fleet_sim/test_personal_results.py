"""A simulation whose devices end with local models: what stays on them, tables, and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.results.folder import ROUNDS, ResultFolder
from coordinator.results.report import REPORT
from fleet_sim.run import simulate
from sojourn.model.layers import norms_of
from tests.fleet_sim.test_batchnorm import STRATEGIES, compiled, simulated

if TYPE_CHECKING:
    from pathlib import Path

SMALL = """
rounds = 2
threads = 1
strategy = "fedbn"
model.options = { hidden = [8] }
[simulation]
devices = 4
engine = "serial"
"""


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_local_batchnorm_layers_keep_start_values_in_job_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setitem(STRATEGIES, "fedbn", f'strategy = "fedbn"\nencoding = "{encoding}"')
    model, (kit, initial) = simulated(tmp_path, monkeypatch, "fedbn"), compiled("merge")
    assert norms_of(model, kit.model).tobytes() == norms_of(initial, kit.model).tobytes()
    assert (model != initial).sum() > 500


def test_process_pool_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "fedbn", 'strategy = "fedbn"')
    one, other = (simulated(tmp_path, monkeypatch, "fedbn", engine=engine) for engine in ("serial", "pool"))
    assert np.array_equal(one, other)


def test_tables_and_page_label_own_model_metrics(tmp_path: Path) -> None:
    found = simulate(SMALL, tmp_path / "out")
    rows = ResultFolder(found.folder, resume=True).rows(ROUNDS)
    assert len(rows) == 2
    assert all(0 < float(row["own_accuracy"]) <= 1 and row["own_devices"] == "4.0" for row in rows)
    assert found.metrics["own_accuracy"] == float(rows[-1]["own_accuracy"])
    page = (tmp_path / "out" / REPORT).read_text(encoding="utf-8")
    assert "own accuracy at the end, mean of 4 devices" in page
    assert "Which model a metric belongs to" in page
    assert "the shared part, with the BatchNorm layers of the start" in page
