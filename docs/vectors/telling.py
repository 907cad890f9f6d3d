"""Vectors as JSON says them."""

from __future__ import annotations

import json
from typing import Any


def told(value: Any) -> Any:
    """A value as JSON can say it."""
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case dict():
            return {key: told(each) for key, each in value.items()}
        case list() | tuple():
            return [told(each) for each in value]
        case _:
            return value


def text_of(made: dict[str, Any]) -> str:
    """The file: one line for each vector, so that a change shows where it is."""
    parts = []
    for name, value in made.items():
        lines = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in value) if isinstance(value, list) else ""
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {lines}\n ]" if lines else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"
