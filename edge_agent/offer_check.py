"""What this device does for others and what it does not: by what is installed, and by what its owner allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sojourn.parts import ClassCountEstimator, name_of
from sojourn.protocol.messages import Prepare, Visit
from sojourn.protocol.wire import TrainingSize

if TYPE_CHECKING:
    from sojourn.protocol.wire import Offer, Task

CLASS_COUNTS = "class-counts"
WIDTHS = {"float32": 4, "float16": 2, "int8": 1}
"""Bytes of a parameter as it travels."""


def unsupported(task: Task, offer: Offer) -> str | None:
    """Why a task cannot be done on these terms, if it cannot. An estimation follows the plain loss, whatever is set."""
    if task.kind == "train" and name_of(task.objective) not in offer.objectives:
        return f"the objective {name_of(task.objective)!r} is not installed or not allowed here"
    if isinstance(task.estimator, ClassCountEstimator) and CLASS_COUNTS not in offer.shares:
        return f"the owner of this device does not share its class counts (`shares` does not list {CLASS_COUNTS!r})"
    asks = task.objective.consent if task.kind == "train" else None
    if asks and asks not in offer.shares:
        return f"the owner of this device does not share what the objective tells (`shares` does not list {asks!r})"
    if (task.threads or 1) > offer.threads:
        return f"{task.threads} threads are more than the {offer.threads} allowed here"
    return None


def memory_needed(order: Visit | Prepare) -> int:
    """An estimate of the bytes that training takes for an order, from what the order says; never less than it shows."""
    size = order.size or TrainingSize(0, 0, 0)
    vectors = order.vectors.values() if isinstance(order, Visit) else ()
    shown = max((ref.size // WIDTHS[ref.encoding] for ref in vectors if ref.encoding in WIDTHS), default=0)
    size = msgspec.structs.replace(size, parameters=max(size.parameters, shown))
    return size.memory(order.task.training.batch, order.kit.size)


def remembers(task: Task) -> bool:
    """Whether what the device remembers of the job goes into this task; an estimation never touches it."""
    return task.kind == "train" and task.objective.keeps
