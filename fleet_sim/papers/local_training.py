"""Tells on a table's page where its methods differ in more than their strategies: in how a device trains."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fleet_sim.console.comparing import training_of
from fleet_sim.console.comparison_report import different
from fleet_sim.console.simulating import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def training_by_method(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """How the devices of each method train: what its job file says, laid over what its strategy brings."""
    return {file.stem: training_of(read(file, {})) for file in files}


def differences_told(training: Mapping[str, Mapping[str, Any]]) -> str:
    """Who trains otherwise than most, and in what; empty where all train alike.

    A strategy may bring a momentum of its own, which a job file that only says `lr` leaves as it is.
    """
    apart = different(training)
    keys = next(iter(apart.values()), {})
    told = [_told(key, {method: values[key] for method, values in apart.items()}) for key in keys]
    return f"**Not all train alike:** {'; '.join(told)}." if told else ""


def _told(key: str, values: Mapping[str, str]) -> str:
    (usual, _), *others = Counter(values.values()).most_common()
    lists = [f"{other} in {', '.join(it for it in values if values[it] == other)}" for other, _ in others]
    return f"`{key}` is {', '.join(lists)}, and {usual} elsewhere"
