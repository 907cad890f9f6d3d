"""Settings from a file with what the command line says laid over them; either suffices."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")
