"""Processes that are ours to end."""

import pytest

from fleet_sim.processes import Processes


def test_an_interrupt_that_python_swallowed_is_remembered(tmp_path) -> None:
    processes = Processes(tmp_path)
    processes.check()
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(2, None)
    with pytest.raises(KeyboardInterrupt):
        processes.check()
