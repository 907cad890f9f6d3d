"""What this device does for others and what it does not: by what is installed, and by what its owner allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.parts import ClassCountEstimator, name_of

if TYPE_CHECKING:
    from sojourn.protocol.wire import Offer, Task

CLASS_COUNTS = "class-counts"


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


def remembers(task: Task) -> bool:
    """Whether what the device remembers of the job goes into this task; an estimation never touches it."""
    return task.kind == "train" and task.objective.keeps
