"""Puts weights from elsewhere into a model, by name: all of them fit, or an error says which do not."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch

from coordinator.models.freezing import chosen
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

SHOWN = 5


@dataclass(frozen=True)
class StartWeights:
    """Tensors by name, and in words where they come from."""

    tensors: Mapping[str, Tensor]
    source: str
    buffers: bool = True
    """Whether what a model keeps besides its parameters must be there too; a graph has only what it computes with."""


def put_in(module: nn.Module, start: StartWeights, new_head: bool | Sequence[str] = False) -> None:
    """Give the model these weights; those of a new head stay as they were drawn."""
    here = module.state_dict()  # of the model's own tensors, not copies
    anew = _head(module, start, new_head)
    wanted = {name: tensor for name, tensor in here.items() if name not in anew}
    given = {name: tensor for name, tensor in start.tensors.items() if name not in anew}
    if isinstance(new_head, bool):
        surplus = [name for name in given if name not in here]
    else:
        surplus = [name for name in given if name not in here and not _fits(name, new_head)]
    missing = _missing(module, wanted, given, start)
    misfits = [_misfit(name, given[name], tensor) for name, tensor in wanted.items() if name in given]
    _check(module, start, new_head, missing, surplus, [each for each in misfits if each])
    with torch.no_grad():
        for name, tensor in wanted.items():
            if name in given:
                tensor.copy_(_finite(name, given[name], start))


def _head(module: nn.Module, start: StartWeights, new_head: bool | Sequence[str]) -> set[str]:
    if new_head is False:
        return set()
    if new_head is True:
        return set(head_of(module))
    names = {name for name in module.state_dict() if _fits(name, new_head)}
    chosen(new_head, {*module.state_dict(), *start.tensors}, "model.new_head")
    return names


def head_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the tensors of the last layer that has parameters."""
    last = [(name, layer) for name, layer in module.named_modules() if any(True for _ in layer.parameters(False))][-1:]
    return tuple(f"{name}.{each}".lstrip(".") for name, layer in last for each, _ in layer.named_parameters("", False))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _missing(
    module: nn.Module, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], start: StartWeights
) -> list[str]:
    """Names that are not given, neither themselves nor by another name of the same tensor."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    there = {tensor.data_ptr() for name, tensor in wanted.items() if name in given and tensor.numel()}
    return [
        name
        for name, tensor in wanted.items()
        if name not in given
        and tensor.is_floating_point()  # counters of batches and the like are no weights
        and (start.buffers or name in parameters)
        and tensor.data_ptr() not in there
    ]


def _misfit(name: str, given: Tensor, own: Tensor) -> str | None:
    if given.shape != own.shape:
        return f"{name} is {list(given.shape)} there and {list(own.shape)} here"
    if given.is_floating_point() != own.is_floating_point():
        return f"{name} is {given.dtype} there and {own.dtype} here"
    return None


def _finite(name: str, given: Tensor, start: StartWeights) -> Tensor:
    if given.is_floating_point() and not bool(torch.isfinite(given).all()):
        raise ModelError(f"model.start: {name} of {start.source} has numbers that are infinite or none at all")
    return given


def _check(
    module: nn.Module,
    start: StartWeights,
    new_head: bool | Sequence[str],
    missing: list[str],
    surplus: list[str],
    misfits: list[str],
) -> None:
    wrong = [
        _told(missing, "missing there"),
        _told(surplus, "not in this model"),
        _told(misfits, "of another shape or type"),
    ]
    if not any(wrong):
        return
    head = head_of(module)
    names = {each.split(" ")[0] for each in (*missing, *misfits)}
    advice = (
        f"Only the last layer differs: with model.new_head = true it starts anew ({', '.join(head)})"
        if new_head is False and names and names <= set(head) and not surplus
        else 'Give a file of this very model; parts that are to start anew can be named: model.new_head = ["fc.*"]'
    )
    raise ModelError(
        f"model.start: {start.source} does not fit the model: {'; '.join(each for each in wrong if each)}. {advice}"
    )


def _told(names: list[str], what: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(name[:200] for name in names[:SHOWN])
    return f"{len(names)} {what} ({shown}{more})"
