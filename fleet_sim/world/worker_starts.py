"""Which simulated devices have their training process running: one that has not needs a while before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.process import IDLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    Times = tuple[float, float]
    """When a device's process is ready, and until when it is known to be busy."""


class WorkerStarts:
    """A process starts when work is near, and ends when it has had none for a while; as `TrainingProcess` does it."""

    def __init__(self, starts: Mapping[str, float], times: Mapping[str, Times] | None = None) -> None:
        """`starts` says how long each device's process takes to start; `times` goes on where another one stopped."""
        self._starts = starts
        self.times: dict[str, Times] = dict(times or {})

    def wait(self, device: str, now: float) -> float:
        """How long it takes from now until the device's process is ready; it is started if it does not run."""
        ready, busy = self.times.get(device, (0.0, float("-inf")))
        if now > max(ready, busy) + IDLE_SECONDS or device not in self.times:
            ready = now + self._starts[device]
            self.times[device] = ready, ready
        return max(0.0, ready - now)

    def use(self, device: str, until: float) -> None:
        """Note that the device's process has work until this time."""
        self.times[device] = self.times[device][0], until
