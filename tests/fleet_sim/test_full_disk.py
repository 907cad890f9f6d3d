"""The coordinator's disk is full at the start of every piece of work, for a while: the job ends undisturbed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from coordinator.machine.sites import ReadRoster
from sojourn.errors import DiskFull
from tests.fleet_sim.small_fleet import OnceBench, run
from tests.fleet_sim.test_damage import JOBS, undisturbed


@pytest.mark.parametrize("strategy", JOBS)
def test_job_survives_a_repeatedly_full_disk(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, tried, perform = undisturbed(strategy), Counter[str](), OnceBench.__call__

    def sometimes_full(bench: OnceBench, work: Any) -> Any:
        kind = type(work).__name__
        tried[kind] += 1
        if tried[kind] % 3 and not isinstance(work, ReadRoster):
            raise DiskFull("writing a blob: the disk is full; free some space to continue")
        return perform(bench, work)

    monkeypatch.setattr(OnceBench, "__call__", sometimes_full)
    done = run(JOBS[strategy])
    assert done.state.status == "done", done.state.detail
    assert np.array_equal(done.model, expected.model)
    assert tried["PrepareJob"] == 3
    assert tried["CloseRound"] >= 6
