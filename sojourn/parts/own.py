"""Parts that a user wrote: found by `package.module:Class`, made from the settings in the job file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from sojourn.parts import Own


def load(own: Own, *methods: str) -> Any:
    """The part, with its settings; it must have these methods."""
    module, _, name = own.part.partition(":")
    try:
        form = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{own.part} is not installed here: {error}") from error
    if lacking := [each for each in methods if not callable(getattr(form, each, None))]:
        raise ConfigError(f"{own.part} has no {' and no '.join(lacking)}; see docs/strategies.md")
    try:
        return msgspec.convert(own.settings, form)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{own.part} cannot be made of {own.settings}: {error}") from error
