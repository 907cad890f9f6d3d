"""A process in place of the one that compiles, which says what a test wants it to say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest


def says(folder: Path, monkeypatch: pytest.MonkeyPatch, *frames: Any, exit_code: int = 0) -> None:
    """Have it read its work, say these frames and end."""
    said = b"".join(len(data).to_bytes(4) + data for data in map(msgspec.msgpack.encode, frames))
    (folder / "said").write_bytes(said)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {folder}/said\nexit {exit_code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
