"""Where torch computes: a device by its name, how arrays get there, and how much of them fits."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Result = TypeVar("Result")
log = logging.getLogger(__name__)

STREAMS: dict[str, Callable[[torch.device], Any]] = {
    "cuda": torch.cuda.Stream,
    "cpu": lambda _device: torch.cpu.Stream(),
}
"""How a stream is made, where a device has any; that of a CPU does nothing, and is there so that calls are the same."""
_NO_ROOM = ("out of memory", "can't allocate memory")
"""What is in the words of errors that are not torch's own: those of mps and of a CPU."""


class TorchPlace:
    """A device of torch, with a stream of its own: work of one engine does not wait for that of another.

    threads: how many of the CPU's work here; 0 for as many as torch takes itself.
    """

    def __init__(self, name: str = "cpu", threads: int = 0) -> None:
        self.device, self._threads = torch.device(name), threads
        self._calls = torch.get_device_module(self.device)
        make = STREAMS.get(self.device.type)
        self._stream = make(self.device) if make else None

    @contextmanager
    def work(self) -> Iterator[None]:
        """While this is open, torch works on the stream and with the threads of this place."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads or threads)
        try:
            with nullcontext() if self._stream is None else self._calls.stream(self._stream):
                yield
        finally:
            torch.set_num_threads(threads)

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """An array as a tensor here; on the CPU they share their memory, and cuda copies while the program goes on."""
        # torch has no tensors that are only to be read.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self.device.type == "cuda":  # only pinned memory is copied beside other work
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def free(self) -> None:
        """Give memory back that is kept for later: pieces of another size are wanted now."""
        if hasattr(self._calls, "empty_cache"):
            self._calls.empty_cache()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether there was too little memory for what torch was asked to do."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _NO_ROOM)


class SampleLimit:
    """How many samples go through models at once: all, until memory did not suffice; then half of what was too many."""

    def __init__(self, place: TorchPlace) -> None:
        self._place = place
        self._most: int | None = None

    def fitting(self, samples: int, compute: Callable[[int], Result]) -> Result:
        """What `compute` gives, which is told how many samples it may take at once: fewer, after it found no room."""
        while True:
            most = min(samples, self._most or samples)
            try:
                return compute(most)
            except RuntimeError as error:
                if most <= 1 or not is_out_of_memory(error):
                    raise
                self._most = most // 2
                log.warning(
                    "%s has too little memory for %s samples at once: going on with %s, which is slower",
                    self._place.device,
                    f"{most:,}",
                    f"{self._most:,}",
                )
            self._place.free()  # here, for the error held on to what was computed so far


def pieces(length: int, most: int) -> list[slice]:
    """Slices of at most so many, one after another."""
    return [slice(first, first + most) for first in range(0, length, most)]
