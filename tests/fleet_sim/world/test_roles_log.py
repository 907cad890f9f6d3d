"""Log lines of simulated roles go to a file, and only errors to the terminal."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fleet_sim.world.role_logs import ROLES, roles_log


def test_warnings_go_to_the_log_file_and_errors_also_to_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "log.txt", [1.5]
    before = [logging.getLogger(name).propagate for name in ROLES]
    with roles_log(file, lambda: clock[0]):
        assert not file.exists()
        logging.getLogger("edge_agent.visits").warning("device-1 declined")
        clock[0] = 2.25
        logging.getLogger("sojourn").error("a fault")
        logging.getLogger("fleet_sim.preparing").warning("left out")
    logging.getLogger("sojourn").warning("afterwards")
    assert file.read_text().splitlines() == ["1.500 s warning device-1 declined", "2.250 s error a fault"]
    assert caplog.messages == ["a fault", "left out", "afterwards"]
    assert [logging.getLogger(name).propagate for name in ROLES] == before
