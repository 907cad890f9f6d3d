"""The edge agent: what runs on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_agent.inference.model import Model

__all__ = ["Model"]


def __getattr__(name: str) -> Any:
    # Imported on first use: it loads numpy and onnxruntime, which the agent's own process does not need.
    if name == "Model":
        from edge_agent.inference.model import Model  # noqa: PLC0415

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
