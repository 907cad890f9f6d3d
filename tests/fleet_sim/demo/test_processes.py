"""Child processes: start, failure and stop."""

import pytest

from fleet_sim.demo.processes import Processes


def test_swallowed_interrupt_is_raised_at_the_next_check(tmp_path) -> None:
    processes = Processes(tmp_path)
    processes.check()
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(2, None)
    with pytest.raises(KeyboardInterrupt):
        processes.check()


def test_signal_during_a_start_is_delayed_until_its_end(tmp_path) -> None:
    processes = Processes(tmp_path)
    processes._starting = True
    processes.interrupt(2, None)
    processes._starting = False
    with pytest.raises(KeyboardInterrupt):
        processes.check()
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(2, None)
