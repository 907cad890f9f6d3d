"""Whose signatures count at the coordinator: one value, so that all of them are told in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.machine.tours import KeysOf
    from sojourn.protocol.operators import OperatorEntry


def _nobody(_devices: object) -> dict[str, bytes]:
    return {}


@dataclass(frozen=True)
class Trust:
    """The public keys that a coordinator knows; without any, everybody is taken at their word, as in a demo."""

    release_key: str = ""
    """Of those who sign releases; without it they go out unverified."""
    mandate_keys: Mapping[str, str] = field(default_factory=dict)
    """Of operators, with whose they are: with them, jobs wait for a mandate that one of these signed."""
    roles: Callable[[], Mapping[str, OperatorEntry]] | None = None
    """Who may ask what; without it, whoever is among the coordinator's `operators`."""
    device_keys: KeysOf = _nobody
    """With which keys some devices sign their results."""
