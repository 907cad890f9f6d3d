"""What may be absent in general, and is there in a test."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """The value itself; a test that comes without it fails here."""
    assert value is not None
    return value
