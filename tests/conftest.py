"""Shared setup of all tests: one folder for kits, one thread for each computation, the order of files, less garbage."""

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
"""The folder that this process made, and must remove."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GARBAGE = (10_000, 10, 10)
"""The number of new objects that starts a collection, instead of 700: torch and the simulations make few garbage."""
_HITS = 3000
"""How often a line that is counted already is passed before it is counted no more, instead of 50 times: every time that
some lines are, slipcover goes through all functions of all modules, and a pass costs more than these lines do."""
_WAITING = (
    "tests/live/test_live_attacks.py",
    "tests/docs/test_first_hour.py",
    "tests/live/",
    "tests/fleet_web/",
    "tests/examples/",
    "tests/baseline/",
    "tests/fleet_sim/demo/",
    "tests/fleet_sim/engines/",
    "tests/edge_agent/setup/",
    "tests/edge_agent/training/",
    "tests/edge_agent/inference/",
    "tests/sojourn/test_notify.py",
    "tests/sojourn/brokers/",
    "tests/sojourn/metrics/",
    "tests/sojourn/links/",
)
"""Where files are that wait for processes, the longest first."""
_COMPUTING = ("tests/coordinator/compiling/test_layers.py", "tests/fleet_sim/", "tests/coordinator/compiling/")
"""Where other files are that take long."""

# The same examples in every run, however slow the machine, and none from a folder of the run before.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `tests.repeat` uses."""
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="Run the files in a random order.")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder before any import that reads its path; workers inherit it from the first process.

    Several tests run at once: each computes on one core, as several nodes on one machine would, and does not wait for
    the threads of others. Ctrl-C is enabled again: a shell that starts a program in the background disables it, also
    for all processes that tests start and interrupt.

    Python caches compiled code, even if that is disabled: tests start hundreds of processes, each of which would
    compile everything again.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    _count_with_fewer_passes()
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput"):
        _KITS.append(tempfile.mkdtemp(prefix="sojourn-tests-"))
        # Matplotlib lists the machine's fonts once per user: in a new folder that would take seconds every time.
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ.setdefault("MPLCONFIGDIR", str(usual / "matplotlib"))
        os.environ["XDG_CACHE_HOME"] = _KITS[0]
        os.environ.update(dict.fromkeys(_THREADS, "1"))


def _count_with_fewer_passes() -> None:
    """Configure slipcover's instance in a worker, which has no option for it, before it sees the first project file."""
    counter = getattr(sys.modules.get("slipcover.pytest_plugin"), "_slipcover_instance", None)
    if counter is not None:
        counter.d_miss_threshold = _HITS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two workers more than there are cores: tests of real fleets wait for processes, leases and brokers.

    On two cores this takes 5 % less time than one more, and keeps both busy to the end.
    """
    return len(os.sched_getaffinity(0)) + 2


def pytest_unconfigure() -> None:
    """Remove the folder."""
    for folder in _KITS:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the slowest files, or take the files in a random order that is the same for all workers."""
    seed = config.getoption("--shuffle-files")
    if seed is None:
        place = _longest_first(list(dict.fromkeys(_file(item) for item in items)))
    else:
        draw = random.Random(seed)
        place = {file: draw.random() for file in sorted({_file(item) for item in items})}
    items.sort(key=lambda item: place[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _longest_first(files: list[str]) -> dict[str, float]:
    """The place of each file: the longest first, those that wait evenly among those that compute.

    A worker that waits leaves its core to the others; were all that wait together, the cores would idle, too.
    """
    place: dict[str, float] = {}
    for long, waits in ((_WAITING, True), (_COMPUTING, False)):
        group = [file for file in files if file.startswith(_WAITING) == waits]
        group.sort(key=lambda file: next((n for n, prefix in enumerate(long) if file.startswith(prefix)), len(long)))
        place |= {file: at / len(group) for at, file in enumerate(group)}
    return place


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among imported objects: scanning them took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    gc.enable()
