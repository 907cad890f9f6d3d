"""The process that tries a release, `python -m edge_agent.releases.trial_process`.

On its own and caged: a graph that crashes onnxruntime, or takes all memory, ends this process and nothing else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from edge_agent.releases.folder import ReleaseFolder
from edge_agent.releases.installing import Trial, Tried
from edge_agent.training.cage import bound_memory, close_cage
from edge_agent.training.frames import write_all
from sojourn.errors import SojournError
from sojourn.protocol.release import Health

NICENESS = 10


def main() -> None:
    """Answer the one question on the standard input."""
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # a library that prints must not get into the answer
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    with os.fdopen(source, "rb") as file:
        trial = msgspec.msgpack.decode(file.read(), type=Trial)
    signal.alarm(int(trial.patience) + 1)  # should nobody be left to end this process
    close_cage(
        [ReleaseFolder(Path(trial.store), trial.served.line).path, Path(trial.data.path), *map(Path, trial.readable)]
    )
    from edge_agent.releases.trial import tried  # noqa: PLC0415  # onnxruntime starts threads, which must be caged too

    bound_memory(None)
    try:
        answer = tried(trial)
    except SojournError as error:
        answer = Tried(str(error), Health())
    write_all(sink, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
