"""Convert vectors to JSON."""

from __future__ import annotations

import json
from typing import Any


def to_json(value: Any) -> Any:
    """Return a value that JSON can represent."""
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case dict():
            return {key: to_json(each) for key, each in value.items()}
        case list() | tuple():
            return [to_json(each) for each in value]
        case _:
            return value


def text_of(made: dict[str, Any]) -> str:
    """Return the file: one line for each vector, so that a diff shows the changed vector."""
    parts = []
    for name, value in made.items():
        lines = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in value) if isinstance(value, list) else ""
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {lines}\n ]" if lines else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"
