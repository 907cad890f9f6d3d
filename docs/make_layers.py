"""Generate the table of layers in docs/models.md from the test cases.

python -m docs.make_layers            write the page
python -m docs.make_layers --check    report whether it is current
"""
# ruff: noqa: INP001  # a script in the folder of its page

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs.made_pages import write_or_check
from tests.coordinator.compiling.layer_cases import CASES
from tests.coordinator.compiling.refused_cases import REFUSED_CASES

PAGE = Path(__file__).parent / "models.md"
_PLACE = re.compile(r"(<!-- layers -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_layers(page: str) -> str:
    """Return the page with the current table."""
    rows = ["| layers | |", "|---|---|"]
    rows += [f"| {case.layers} | {_compiled(case.remark)} |" for case in CASES]
    rows += [f"| {case.what} | refused; use {case.instead} |" for case in REFUSED_CASES]
    return _PLACE.sub(lambda found: found[1] + "\n".join(rows) + "\n" + found[2], page)


def _compiled(remark: str) -> str:
    return f"compiled: {remark}" if remark else "compiled"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    return write_or_check({PAGE: with_layers(PAGE.read_text(encoding="utf-8"))}, "docs.make_layers", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
