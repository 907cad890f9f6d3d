"""The timeouts of links and doors in these tests: as in `tests/sojourn`, long enough for a slow machine."""

from tests.sojourn.conftest import unhurried

__all__ = ["unhurried"]
