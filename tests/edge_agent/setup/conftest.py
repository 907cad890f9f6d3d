"""Links and doors use the timeouts of `tests/sojourn`, which fit slow machines."""

from tests.sojourn.conftest import unhurried

__all__ = ["unhurried"]
