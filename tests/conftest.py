"""What all tests share: kits that simulations compile are kept beside the other caches, not in a person's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Point at the folder before anything is imported that reads it."""
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache" / "kits")
