"""The rules for the task of a kit: shapes that go together, and strata that are really some."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, prod
from typing import TYPE_CHECKING

from sojourn.model.strata import width
from sojourn.protocol.task import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.protocol.spec import InputSpec
    from sojourn.protocol.task import Strata, TaskSpec

MOST_STRATA = 4096
"""As many numbers as a device may tell of itself."""
MOST_CENTRES = 1 << 16
"""Numbers of all centres together."""
MOST_NAMES = 1 << 12
LARGEST_TARGET = 1 << 22
"""Numbers of one target, or of what is answered for one sample."""
LONGEST_NAME = 1 << 10
LONGEST_WINDOW = 1 << 22


def objections_to_task(task: TaskSpec, input: InputSpec, classes: int) -> Iterator[str]:  # noqa: A002
    """What speaks against a task for samples of this kind."""
    sizes = (prod(task.output), prod(task.target.shape) if task.target else 1)
    if not task.output or max(sizes) > LARGEST_TARGET:
        yield f"a task with answers of {sizes[0]:,} numbers and targets of {sizes[1]:,}"
    if wrong := _misfit(task, input, classes):
        yield f"a task of kind {task.kind} with {wrong}"
    words = (*task.names, *task.normal)
    if len(words) > MOST_NAMES or max(map(len, (*words, task.loss))) > LONGEST_NAME:
        yield f"a task with {len(words)} names, or one that is too long"
    if not (isfinite(task.blind) and task.blind > 0):
        yield f"a task whose blind loss is {task.blind}"
    if len(task.beside) > 1:
        yield f"a task with {len(task.beside)} models beside"
    if len(task.ranges) > MOST_NAMES or not all(low <= high and isfinite(high - low) for low, high in task.ranges):
        yield f"a task with {len(task.ranges)} ranges, or one that is none"
    yield from _objections_to_strata(task.strata)
    told, there = {*map(len, task.strata.centres), *([1] if task.strata.edges else [])}, width(task, input)
    if told and told != {there}:
        yield f"strata by {max(told)} numbers of a sample, of which there are {there}"
    if task.kind in ("classification", "multilabel") and task.strata.count != classes:
        yield f"a task with {task.strata.count} strata for {classes} classes"


def _misfit(task: TaskSpec, input: InputSpec, classes: int) -> str | None:  # noqa: A002
    """In what answers, targets and samples do not go together."""
    target, output, window = task.target, task.output, task.window
    match task.kind:
        case "classification":
            fits = target == Target((), "int64") and output == (classes,)
        case "multilabel":
            fits = target == Target((classes,)) and output == (classes,)
        case "reconstruction":
            fits = target is None and output == input.shape and input.dtype == "float32"
        case "tokens":
            fits = target == Target(input.shape, "int64") and output[:-1] == input.shape and input.dtype == "int64"
        case _:
            fits = target == Target(output)
    if (task.kind == "forecast") != (window is not None):
        return "a window, or without one"
    if window and (max(window.steps, window.horizon, window.stride) > LONGEST_WINDOW or window.horizon != output[0]):
        return f"a window of {window.steps} steps and {window.horizon} to come"
    return None if fits else f"answers {list(output)} for samples {list(input.shape)}, and targets of another kind"


def _objections_to_strata(strata: Strata) -> Iterator[str]:
    count, widths = strata.count, {len(centre) for centre in strata.centres}
    if count > MOST_STRATA or sum(map(len, strata.centres)) > MOST_CENTRES:
        yield f"a task with {count} strata"
    if strata.edges and strata.centres:
        yield "strata with edges and with centres"
    if strata.edges and len(strata.edges) != count - 1:
        yield f"{count} strata with {len(strata.edges)} edges"
    if strata.centres and (len(strata.centres) != count or widths != {len(strata.scale)} or not strata.scale):
        yield f"{count} strata with {len(strata.centres)} centres, or such of several sizes"
    known = (*strata.edges, *strata.scale, *(value for centre in strata.centres for value in centre))
    if not all(map(isfinite, known)) or not all(value > 0 for value in strata.scale):
        yield "strata with edges, centres or a scale that are no numbers"
    if any(low >= high for low, high in pairwise(strata.edges)):
        yield "strata whose edges do not rise"
