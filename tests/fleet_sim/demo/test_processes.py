"""Processes that are ours to end."""

import pytest

from fleet_sim.demo.processes import Processes


def test_an_interrupt_that_python_swallowed_is_remembered(tmp_path) -> None:
    processes = Processes(tmp_path)
    processes.check()
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(2, None)
    with pytest.raises(KeyboardInterrupt):
        processes.check()


def test_a_signal_in_the_middle_of_a_start_waits_for_its_end(tmp_path) -> None:
    processes = Processes(tmp_path)
    processes._starting = True
    processes.interrupt(2, None)
    processes._starting = False
    with pytest.raises(KeyboardInterrupt):
        processes.check()
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(2, None)
