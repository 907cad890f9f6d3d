"""Links and doors wait as long as in `tests/sojourn`: a slow machine ends no connection."""

from tests.sojourn.conftest import unhurried

__all__ = ["unhurried"]
