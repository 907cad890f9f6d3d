"""The one way to a finisher: by its settings, with what it gives back checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.finishers.echo import echo
from coordinator.finishers.generator import first_generator, learn_generator
from coordinator.finishers.task import Finished, FinishTask, State, Vector
from sojourn.errors import JobError
from sojourn.parts import Dense, EchoServer, Finisher, GeneratorServer, NoFinisher, OwnFinisher, Vote, name_of, own

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.strategies import Strategy
    from sojourn.protocol.spec import Kit

    Arithmetic = Callable[[Any, FinishTask], Finished]

MOST_NUMBERS = 1 << 28
"""In a vector that a finisher keeps: 1 GB."""
MOST_VECTORS = 64
IMAGE_AXES = 3


def finish(settings: Finisher, task: FinishTask) -> Finished:
    """What the members' models come to; what is no model, or not finite, is an error that names the finisher."""
    done = _FINISHERS[type(settings)](settings, task)
    name = name_of(settings)
    if len(done.state) > MOST_VECTORS:
        raise JobError(f"the finisher {name} keeps {len(done.state)} vectors, more than {MOST_VECTORS}")
    if done.model is not None:
        _check(done.model, task.kit.model.size, f"the finisher {name}: its model")
    for vector_name, vector in done.state.items():
        _check(vector, None, f'the finisher {name}: its state "{vector_name}"')
    return done


def check_kit(settings: Finisher, kit: Kit) -> None:
    """Whether a finisher can work with a job's model and data; JobError, before anything is trained, if not."""
    shape, dtype = kit.input.shape, kit.input.dtype
    if isinstance(settings, Dense) and (len(shape) != IMAGE_AXES or dtype != "float32"):
        raise JobError(
            f"the finisher {name_of(settings)} makes images (channels, height, width), and this job's input is "
            f"{dtype} of shape {list(shape)}: choose another strategy"
        )


def first_state(strategy: Strategy, kit: Kit, seed: int) -> State:
    """The vectors that a strategy's finisher begins with; those that it sends are among them."""
    made = _FIRST.get(type(strategy.finisher))
    return made(strategy.objective, kit, seed) if made else {}


def _check(vector: object, size: int | None, what: str) -> None:
    if not isinstance(vector, np.ndarray):
        raise JobError(f"{what} is of type {type(vector).__name__}, not a vector of float32")
    wanted = size if size is not None else min(vector.size, MOST_NUMBERS)
    if vector.dtype != np.float32 or vector.shape != (wanted,):
        raise JobError(f"{what} is {vector.dtype} of shape {vector.shape}, not {wanted} numbers of float32")
    if not np.isfinite(vector).all():
        raise JobError(f"{what} is not finite")


def _none(_: NoFinisher, __: FinishTask) -> Finished:
    return Finished()


def _own(settings: OwnFinisher, task: FinishTask) -> Finished:
    """What a user's own finisher makes of it."""
    done = own.load(settings, "finish").finish(task)
    if not isinstance(done, Finished):
        raise JobError(f"{settings.part} gave {type(done).__name__}, not coordinator.finishers.task.Finished")
    return done


def _dense(settings: Dense, task: FinishTask) -> Finished:
    from coordinator.finishers.dense import dense  # noqa: PLC0415  # torch takes seconds and 280 MB

    return dense(settings, task)


def _vote(settings: Vote, task: FinishTask) -> Finished:
    from coordinator.finishers.vote import vote  # noqa: PLC0415  # see above

    return vote(settings, task)


_FINISHERS: dict[type[Finisher], Arithmetic] = {
    NoFinisher: _none,
    Dense: _dense,
    EchoServer: echo,
    Vote: _vote,
    GeneratorServer: learn_generator,
    OwnFinisher: _own,
}
_FIRST: dict[type[Finisher], Callable[[Any, Kit, int], State]] = {GeneratorServer: first_generator}
"""How those begin that have state before the first round, by the objective of their job."""
__all__ = ["FinishTask", "Finished", "State", "Vector", "finish", "first_state"]
