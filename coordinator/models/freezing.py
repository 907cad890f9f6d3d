"""Which tensors of a model are trained: those whose names fit one of a job's patterns. The others stay as they are."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import nn

SHOWN = 12


def freeze(module: nn.Module, trains: Sequence[str]) -> None:
    """Train only parameters that fit a pattern such as `classifier.*`; all that can be trained where there is none.

    A parameter that the model's own code has frozen stays frozen.
    """
    if not trains:
        return
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    trained = chosen(trains, list(parameters), "model.trains")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def chosen(patterns: Sequence[str], names: Collection[str], key: str) -> set[str]:
    """The names that fit one of the patterns; a pattern that fits none is an error that lists names."""
    found: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        if not fitting:
            raise ModelError(f"{key}: no tensor of the model fits {pattern!r}; there are {listed(names)}")
        found |= fitting
    return found


def listed(names: Collection[str]) -> str:
    """Names for a person: the first and the last of many."""
    every = list(names)
    if len(every) <= SHOWN:
        return ", ".join(every)
    half = SHOWN // 2
    return f"{', '.join(every[:half])}, ..., {', '.join(every[-half:])} ({len(every)} in all)"
