"""The sandboxed process that tries a release: a graph that crashes onnxruntime or exhausts the memory ends only it."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from edge_agent.releases.folder import ReleaseFolder
from edge_agent.releases.installing import Trial, Tried
from edge_agent.training.sandbox import bound_memory, enter_sandbox
from sojourn.errors import SojournError
from sojourn.processes import Parent, lower_priority
from sojourn.protocol.release import Health

NICENESS = 10


def main() -> None:
    """Receive one `Trial` from the agent, perform it, and send the result."""
    agent = Parent(msgspec.msgpack.Decoder(Trial))
    lower_priority(NICENESS)
    trial = next(agent.frames)
    signal.alarm(int(trial.timeout) + 1)  # ends this process even if the agent is gone
    enter_sandbox(
        [ReleaseFolder(Path(trial.store), trial.served.line).path, Path(trial.data.path), *map(Path, trial.readable)]
    )
    from edge_agent.releases.trial import tried  # noqa: PLC0415  # onnxruntime's threads must start in the sandbox

    bound_memory(None)
    try:
        answer = tried(trial)
    except SojournError as error:
        answer = Tried(str(error), Health())
    agent.send(answer)


if __name__ == "__main__":
    main()
