"""A check for values that may be absent in general, but not in a test."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """Return the value; fail if it is None."""
    assert value is not None
    return value
