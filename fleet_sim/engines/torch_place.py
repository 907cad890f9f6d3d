"""A torch device: selection by name, transfer of arrays, and limits of its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Result = TypeVar("Result")
log = logging.getLogger(__name__)

STREAMS: dict[str, Callable[[torch.device], Any]] = {
    "cuda": torch.cuda.Stream,
    "cpu": lambda _device: torch.cpu.Stream(),
}
"""How to create a stream, if the device type has streams; a CPU's stream does nothing and keeps calls uniform."""
_NO_ROOM = ("out of memory", "can't allocate memory")
"""Texts in the out-of-memory errors of mps and of the CPU, which have no special type."""


class TorchPlace:
    """A torch device with its own stream, so that engines do not wait for each other.

    threads: the number of CPU threads; 0 for torch's default.
    """

    def __init__(self, name: str = "cpu", threads: int = 0) -> None:
        self.device, self._threads = torch.device(name), threads
        self._calls = torch.get_device_module(self.device)
        make = STREAMS.get(self.device.type)
        self._stream = make(self.device) if make else None

    @contextmanager
    def work(self) -> Iterator[None]:
        """A context manager that selects this place's stream and threads."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads or threads)
        try:
            with nullcontext() if self._stream is None else self._calls.stream(self._stream):
                yield
        finally:
            torch.set_num_threads(threads)

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """Return an array as a tensor on the device; on the CPU they share memory, on cuda the copy is asynchronous."""
        # torch has no read-only tensors.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self.device.type == "cuda":  # only pinned memory is copied asynchronously
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def free(self) -> None:
        """Free cached memory, because pieces of another size follow."""
        if hasattr(self._calls, "empty_cache"):
            self._calls.empty_cache()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of torch means that memory was insufficient."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _NO_ROOM)


class SampleLimit:
    """The number of samples processed at once: all, until memory is insufficient; then half of the failed number."""

    def __init__(self, place: TorchPlace) -> None:
        self._place = place
        self._limit: int | None = None

    def fitting(self, samples: int, compute: Callable[[int], Result]) -> Result:
        """Call `compute` with a maximum number of samples, reduced until memory suffices, and return its result."""
        while True:
            limit = min(samples, self._limit or samples)
            try:
                return compute(limit)
            except RuntimeError as error:
                if limit <= 1 or not is_out_of_memory(error):
                    raise
                self._limit = limit // 2
                log.warning(
                    "%s has too little memory for %s samples at once: continuing with %s, which is slower",
                    self._place.device,
                    f"{limit:,}",
                    f"{self._limit:,}",
                )
            self._place.free()  # freed here, because the error held references to partial results


def pieces(length: int, limit: int) -> list[slice]:
    """Return slices of at most this many samples."""
    return [slice(first, first + limit) for first in range(0, length, limit)]
