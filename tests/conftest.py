"""What all tests share: one new folder for compiled kits, so that a run compiles each once and inherits none."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_KITS: list[str] = []
"""The folder that this process made, and has to take away."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder before anything is imported that reads where it is; workers inherit it from the first process.

    Ctrl-C means something again: a shell that starts a program in the background has it ignored, and so would all the
    processes that tests start and interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        _KITS.append(tempfile.mkdtemp(prefix="sojourn-tests-"))
        os.environ["XDG_CACHE_HOME"] = _KITS[0]


def pytest_unconfigure() -> None:
    """Take the folder away."""
    for folder in _KITS:
        shutil.rmtree(folder, ignore_errors=True)
