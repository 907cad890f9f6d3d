"""A substitute for the compiling process, which sends the frames that a test defines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sojourn.processes import framed


def send_frames(folder: Path, monkeypatch: pytest.MonkeyPatch, *frames: Any, exit_code: int = 0) -> None:
    """Make the process send these frames and end."""
    (folder / "frames").write_bytes(b"".join(map(framed, frames)))
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat {folder}/frames\nexit {exit_code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
