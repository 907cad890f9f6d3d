"""The edge agent: what runs on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_agent.inference.model import Model

__all__ = ["Model"]


def __getattr__(name: str) -> Any:
    # Only when it is asked for: numpy and onnxruntime come with it, and the agent's own process is small without them.
    if name == "Model":
        from edge_agent.inference.model import Model  # noqa: PLC0415

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
