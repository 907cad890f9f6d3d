"""The entry point of all finishers; it checks their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coordinator.finishers.fedgen import first_generator, learn_generator
from coordinator.finishers.ma_echo import echo
from coordinator.finishers.task import Finished, FinishTask, State, Vector
from coordinator.strategies import Strategy
from sojourn.errors import JobError
from sojourn.parts import (
    Dense,
    EchoServer,
    Finisher,
    GeneratorServer,
    NoFinisher,
    OwnFinisher,
    Vote,
    custom_code,
    name_of,
)
from sojourn.protocol.spec import Kit

Arithmetic = Callable[[Any, FinishTask], Finished]

MAX_NUMBERS = 1 << 28
"""The maximum length of a vector that a finisher keeps: 1 GB."""
MAX_VECTORS = 64
IMAGE_AXES = 3


def finish(settings: Finisher, task: FinishTask) -> Finished:
    """Run a finisher; an invalid or non-finite result is an error that names it."""
    done = _FINISHERS[type(settings)](settings, task)
    name = name_of(settings)
    if len(done.state) > MAX_VECTORS:
        raise JobError(f"the finisher {name} keeps {len(done.state)} vectors, more than {MAX_VECTORS}")
    if done.model is not None:
        _check(done.model, task.kit.model.size, f"the finisher {name}: its model")
    for vector_name, vector in done.state.items():
        _check(vector, None, f'the finisher {name}: its state "{vector_name}"')
    return done


def check_kit(settings: Finisher, kit: Kit) -> None:
    """Raise JobError, before anything is trained, if a finisher does not support a job's model and data."""
    shape, dtype = kit.input.shape, kit.input.dtype
    if isinstance(settings, Dense) and (len(shape) != IMAGE_AXES or dtype != "float32"):
        raise JobError(
            f"the finisher {name_of(settings)} generates images (channels, height, width), and this job's input is "
            f"{dtype} of shape {list(shape)}: choose another strategy"
        )


def first_state(strategy: Strategy, kit: Kit, seed: int) -> State:
    """Return the vectors with which a strategy's finisher begins, including those that it sends."""
    made = _FIRST.get(type(strategy.finisher))
    return made(strategy.objective, kit, seed) if made else {}


def _check(vector: object, size: int | None, what: str) -> None:
    if not isinstance(vector, np.ndarray):
        raise JobError(f"{what} is of type {type(vector).__name__}, not a vector of float32")
    wanted = size if size is not None else min(vector.size, MAX_NUMBERS)
    if vector.dtype != np.float32 or vector.shape != (wanted,):
        raise JobError(f"{what} is {vector.dtype} of shape {vector.shape}, not {wanted} numbers of float32")
    if not np.isfinite(vector).all():
        raise JobError(f"{what} is not finite")


def _custom(settings: OwnFinisher, task: FinishTask) -> Finished:
    """Run a custom finisher."""
    done = custom_code.load(settings, "finish").finish(task)
    if not isinstance(done, Finished):
        raise JobError(f"{settings.part} returned {type(done).__name__}, not coordinator.finishers.task.Finished")
    return done


def _dense(settings: Dense, task: FinishTask) -> Finished:
    from coordinator.finishers.dense import dense  # noqa: PLC0415  # torch takes seconds and 280 MB

    return dense(settings, task)


def _vote(settings: Vote, task: FinishTask) -> Finished:
    from coordinator.finishers.fedov import vote  # noqa: PLC0415  # see above

    return vote(settings, task)


_FINISHERS: dict[type[Finisher], Arithmetic] = {
    NoFinisher: lambda _settings, _task: Finished(),
    Dense: _dense,
    EchoServer: echo,
    Vote: _vote,
    GeneratorServer: learn_generator,
    OwnFinisher: _custom,
}
_FIRST: dict[type[Finisher], Callable[[Any, Kit, int], State]] = {GeneratorServer: first_generator}
"""The initial state of finishers that have state before the first round, from the objective of their job."""
__all__ = ["FinishTask", "Finished", "State", "Vector", "finish", "first_state"]
