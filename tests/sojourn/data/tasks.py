"""Sample forms of each kind of task for the tests of the readers."""

from __future__ import annotations

from typing import Any, Literal

from sojourn.data.samples import SampleForm
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window

STRATA = Strata(2)


def form_of(
    kind: Any,
    shape: tuple[int, ...],
    target: tuple[int, ...] | None = None,
    *,
    classes: tuple[str, ...] = (),
    dtype: Literal["float32", "int64"] = "float32",
    output: tuple[int, ...] = (),
    window: Window | None = None,
    **words: Any,
) -> SampleForm:
    """Return the sample form of a task."""
    wanted = None if target is None else Target(target, "int64" if kind == "tokens" else "float32")
    task = TaskSpec(kind, output or target or shape, wanted, STRATA, window=window, **words)
    return SampleForm(InputSpec(shape, dtype), classes, task)
