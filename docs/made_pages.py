"""Write generated pages, or report which of them are not current."""
# ruff: noqa: INP001  # in the folder of the pages

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_or_check(pages: Mapping[Path, str], command: str, arguments: Sequence[str]) -> int:
    """Write the pages that are not current; with --check, only print their names and return 1 if there are any."""
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        sys.stdout.writelines(f"{path.name} is not current: run python -m {command}\n" for path in stale)
        return int(bool(stale))
    for path in stale:
        path.write_text(pages[path], encoding="utf-8")
    return 0
