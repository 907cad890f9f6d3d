"""A few thousand mutated packets into fleets in the middle of a job; `python -m tests.fuzz` sends more."""

from __future__ import annotations

import pytest

from tests.fuzz import JOBS, Fuzzing


@pytest.mark.parametrize("seed", range(len(JOBS)))
def test_mutated_packets_never_crash_a_node_or_its_journal(seed: int) -> None:
    fuzzing = Fuzzing(seed)
    fuzzing.run(1000)
    assert fuzzing.check().endswith("then done")
    assert fuzzing.given["one field"] > 300
