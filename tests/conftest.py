"""What all tests share: one folder for kits, one thread for each computation, an order of files, little garbage."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

_KITS: list[str] = []
"""The folder that this process made, and has to take away."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GARBAGE = (10_000, 10, 10)
"""How many new objects begin a collection, instead of 700: torch and the simulations make many, and few are garbage."""
_HITS = 3000
"""How often a line that is counted already is passed before it is counted no more, instead of 50 times: every time that
some lines are, slipcover goes through all functions of all modules, and a pass costs more than these lines do."""
_LONG = (
    "tests/docs/test_first_hour.py",
    "tests/live/",
    "tests/examples/",
    "tests/upgrade/",
    "tests/fleet_sim/demo/",
    "tests/fleet_sim/engines/",
    "tests/coordinator/compiling/",
    "tests/coordinator/releases/",
    "tests/fleet_sim/",
)
"""Where files are that take longest: begun first, they leave no core idle at the end."""

# The same examples in every run, however slow the machine, and none from a folder of the run before.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `tests.repeat` uses."""
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="Run the files in a random order.")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder before anything is imported that reads where it is; workers inherit it from the first process.

    Several tests run at once: each computes on one core, as a fleet on one machine would, and waits for no others'
    threads. Ctrl-C means something again: a shell that starts a program in the background has it ignored, and so would
    all the processes that tests start and interrupt.

    Python keeps what it compiles, also where it is told not to: tests start hundreds of processes, and each of them
    would compile everything again.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    _count_with_fewer_passes()
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput"):
        _KITS.append(tempfile.mkdtemp(prefix="sojourn-tests-"))
        # Matplotlib lists the fonts of a machine once for its user: in a new folder it would take seconds every time.
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ.setdefault("MPLCONFIGDIR", str(usual / "matplotlib"))
        os.environ["XDG_CACHE_HOME"] = _KITS[0]
        os.environ.update(dict.fromkeys(_THREADS, "1"))


def _count_with_fewer_passes() -> None:
    """Tell slipcover's instance in a worker, which has no option for it, before it sees the first of our files."""
    counter = getattr(sys.modules.get("slipcover.pytest_plugin"), "_slipcover_instance", None)
    if counter is not None:
        counter.d_miss_threshold = _HITS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: tests of real fleets wait for others' processes, leases and brokers.

    Two more take as long: from then on the cores are busy.
    """
    return len(os.sched_getaffinity(0)) + 1


def pytest_unconfigure() -> None:
    """Take the folder away."""
    for folder in _KITS:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, or take the files in a random order that is the same for all workers."""
    seed = config.getoption("--shuffle-files")
    if seed is None:
        items.sort(
            key=lambda item: next((n for n, long in enumerate(_LONG) if item.nodeid.startswith(long)), len(_LONG))
        )
        return
    draw = random.Random(seed)
    place = {path: draw.random() for path in sorted({str(item.path) for item in items})}
    items.sort(key=lambda item: place[str(item.path)])


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among what was imported: it stays, and looking took a tenth of all time."""
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    gc.enable()
