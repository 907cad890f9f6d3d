"""Having a broker read its files again, where this machine knows how."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from pathlib import Path

from sojourn.brokers.fleet import DEFAULT_FOLDER

log = logging.getLogger(__name__)
_SECONDS = 30.0


def reload_broker(folder: Path, command: str = "") -> bool:
    """Have the broker of this folder read its files again; False if nobody here knows how, or it did not work.

    command: what does it; without one systemd is asked, where it runs the broker that this folder is for.
    """
    words = shlex.split(command)
    if not words:
        if folder.resolve() != Path(DEFAULT_FOLDER) or os.geteuid() != 0 or not Path("/run/systemd/system").is_dir():
            return False
        words = ["systemctl", "reload", "mosquitto"]
    try:
        done = subprocess.run(words, check=False, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the broker was not told to read its files again: %s", error)
        return False
    if done.returncode:
        log.warning("%s: exit code %d: %s", words[0], done.returncode, done.stderr.decode(errors="replace")[:200])
    return done.returncode == 0
