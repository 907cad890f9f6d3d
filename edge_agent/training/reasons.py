"""Why a visit cannot be done here: errors, and the word with which each one declines."""

from __future__ import annotations

from sojourn.errors import ConfigError, DataError, DiskFull, GraphRefused, InvalidMessage, JobError, SojournError

_ALLOCATION_FAILED = ("failed to allocate", "bad_alloc", "bad allocation", "out of memory")


class RuntimeDiffers(SojournError):
    """This machine's onnxruntime does not compute what the kit's probe says."""


class Unsupported(SojournError):
    """The task asks for something that this agent cannot do."""


REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DataError, "data"),
    (RuntimeDiffers, "runtime"),
    (Unsupported, "unsupported"),
    (ConfigError, "unsupported"),  # an own objective that cannot be made
    (JobError, "unsupported"),
    (GraphRefused, "unsupported"),
    (InvalidMessage, "unsupported"),  # a blob that is no kit
    (DiskFull, "disk"),
    (MemoryError, "memory"),
)
"""The word with which a visit is declined for each error; any other is `failed`."""


def reason_of(error: Exception) -> str:
    """The word for an error."""
    if word := next((word for kind, word in REASONS if isinstance(error, kind)), None):
        return word
    # onnxruntime has no error of its own for this.
    return "memory" if any(words in str(error).lower() for words in _ALLOCATION_FAILED) else "failed"
