"""Choose which tensors of a model are trained, and load weights from files by tensor name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from sojourn.errors import ModelError

MAX_NAMES = 12


def freeze(module: nn.Module, trains: Sequence[str]) -> None:
    """Train only parameters that match a pattern such as `classifier.*`, or all trainable ones without a pattern.

    A parameter that the model's code has frozen stays frozen.
    """
    if not trains:
        return
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    trained = chosen(trains, list(parameters), "model.trains")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def chosen(patterns: Sequence[str], names: Collection[str], key: str) -> set[str]:
    """Return the names that match a pattern; a pattern without a match is an error that lists names."""
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise ModelError(f"{key}: no tensor of the model matches {pattern!r}; its tensors are {listed(names)}")
        found |= matching
    return found


def listed(names: Collection[str]) -> str:
    """List names, of many only the first and the last."""
    every = list(names)
    if len(every) <= MAX_NAMES:
        return ", ".join(every)
    half = MAX_NAMES // 2
    return f"{', '.join(every[:half])}, ..., {', '.join(every[-half:])} ({len(every)} in total)"


MAX_ERRORS = 5


@dataclass(frozen=True)
class StartWeights:
    """Tensors by name, and a description of their source."""

    tensors: Mapping[str, Tensor]
    source: str
    buffers: bool = True
    """Whether the model's buffers must also be present; a graph contains only the tensors that it uses."""


def load_weights(module: nn.Module, start: StartWeights, new_head: bool | Sequence[str] = False) -> None:
    """Load the weights into the model; a new head keeps its random weights."""
    here = module.state_dict()  # references to the model's tensors, not copies
    fresh = _head(module, start, new_head)
    wanted = {name: tensor for name, tensor in here.items() if name not in fresh}
    given = {name: tensor for name, tensor in start.tensors.items() if name not in fresh}
    if isinstance(new_head, bool):
        surplus = [name for name in given if name not in here]
    else:
        surplus = [name for name in given if name not in here and not _matches(name, new_head)]
    missing = _missing(module, wanted, given, start)
    mismatches = [_mismatch(name, given[name], tensor) for name, tensor in wanted.items() if name in given]
    _check(module, start, new_head, missing, surplus, [each for each in mismatches if each])
    with torch.no_grad():
        for name, tensor in wanted.items():
            if name in given:
                tensor.copy_(_finite(name, given[name], start))


def _head(module: nn.Module, start: StartWeights, new_head: bool | Sequence[str]) -> set[str]:
    if new_head is False:
        return set()
    if new_head is True:
        return set(head_of(module))
    names = {name for name in module.state_dict() if _matches(name, new_head)}
    chosen(new_head, {*module.state_dict(), *start.tensors}, "model.new_head")
    return names


def head_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors of the last layer with parameters."""
    last = [(name, layer) for name, layer in module.named_modules() if any(True for _ in layer.parameters(False))][-1:]
    return tuple(f"{name}.{each}".lstrip(".") for name, layer in last for each, _ in layer.named_parameters("", False))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _missing(
    module: nn.Module, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], start: StartWeights
) -> list[str]:
    """Return names without weights, under their own name or another name of the same tensor."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    there = {tensor.data_ptr() for name, tensor in wanted.items() if name in given and tensor.numel()}
    return [
        name
        for name, tensor in wanted.items()
        if name not in given
        and tensor.is_floating_point()  # counters of batches are not weights
        and (start.buffers or name in parameters)
        and tensor.data_ptr() not in there
    ]


def _mismatch(name: str, given: Tensor, expected: Tensor) -> str | None:
    if given.shape != expected.shape:
        return f"{name} is {list(given.shape)} in the file and {list(expected.shape)} in the model"
    if given.is_floating_point() != expected.is_floating_point():
        return f"{name} is {given.dtype} in the file and {expected.dtype} in the model"
    return None


def _finite(name: str, given: Tensor, start: StartWeights) -> Tensor:
    if given.is_floating_point() and not bool(torch.isfinite(given).all()):
        raise ModelError(f"model.start: {name} of {start.source} has values that are not finite")
    return given


def _check(
    module: nn.Module,
    start: StartWeights,
    new_head: bool | Sequence[str],
    missing: list[str],
    surplus: list[str],
    mismatches: list[str],
) -> None:
    wrong = [
        _count(missing, "missing in the file"),
        _count(surplus, "not in this model"),
        _count(mismatches, "of another shape or type"),
    ]
    if not any(wrong):
        return
    head = head_of(module)
    names = {each.split(" ")[0] for each in (*missing, *mismatches)}
    advice = (
        f"Only the last layer differs: with model.new_head = true it starts with random weights ({', '.join(head)})"
        if new_head is False and names and names <= set(head) and not surplus
        else 'Use a file of the same model, or list the parts that start with random weights: model.new_head = ["fc.*"]'
    )
    raise ModelError(
        f"model.start: {start.source} does not fit the model: {'; '.join(each for each in wrong if each)}. {advice}"
    )


def _count(names: list[str], what: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_ERRORS} more" if len(names) > MAX_ERRORS else ""
    shown = ", ".join(name[:200] for name in names[:MAX_ERRORS])
    return f"{len(names)} {what} ({shown}{more})"
