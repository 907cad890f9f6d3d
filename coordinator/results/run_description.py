"""A description of a job or a simulation from its settings, in two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.jobs.settings import ModelSettings
from coordinator.results.job_metrics import name_in, task_in


def what_was_run(config: Mapping[str, Any]) -> str:
    """Describe the most important settings in two sentences."""
    model = name_in(config, "model") or ModelSettings().name
    kind = task_in(config).kind
    task = "" if kind == "classification" else f"{capital(kind)}: "
    text = f"{task}strategy {config.get('strategy', 'visit')}, model {model}, seed {config.get('seed', 0)}."
    text = text if task else capital(text)
    if fleet := config.get("simulation"):
        board = fleet.get("board", "")
        boards = board if isinstance(board, str) else ", ".join(board)
        sites = f"{fleet['sites']} site{'s' if fleet['sites'] > 1 else ''}"
        text += f" {fleet['devices']:,} simulated devices ({boards}) at {sites}, {fleet['data']} {_split(config)}."
    if dropout := config.get("availability", {}).get("dropout"):
        text += f" A visit fails with probability {dropout:g}."
    return text


def _split(config: Mapping[str, Any]) -> str:
    split = config.get("split", {})
    by = split.get("by", "dirichlet")
    extra = {"dirichlet": "alpha", "quantity": "alpha", "shards": "shards"}.get(by)
    return f"split by {by}" + (f" ({extra} {split[extra]:g})" if extra in split else "")


def capital(text: str) -> str:
    """Capitalise the first letter of a text."""
    return text[:1].upper() + text[1:]
