"""Whether a process that a test has seen still runs."""

from __future__ import annotations

import os
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped: the process that adopts it may take its time."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return Path("/proc/self").exists()  # macOS has no such folder
    return state in "ZX"
