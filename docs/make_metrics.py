"""Lists every figure that nodes tell Prometheus in docs/operations.md, from the catalogue that the code tells them by.

python -m docs.make_metrics            write the page
python -m docs.make_metrics --check    say whether it is current
"""
# ruff: noqa: INP001  # a script beside the page that it serves

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

from docs.made_pages import write_or_check
from sojourn.metrics.catalogue import METRICS, Teller

PAGE = Path(__file__).parent / "operations.md"
_PLACE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_metrics(page: str) -> str:
    """The page with the tables in their place."""
    return _PLACE.sub(lambda found: found[1] + "\n".join(map(_table, get_args(Teller))) + found[2], page)


def _table(teller: Teller) -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.what} |"
        for metric in METRICS
        if metric.teller == teller
    ]
    return "\n".join(
        [f"**{teller[0].upper()}{teller[1:]}**", "", "| name | kind | labels | what |", "|---|---|---|---|", *rows, ""]
    )


def main(arguments: list[str]) -> int:
    """Write, or check."""
    return write_or_check({PAGE: with_metrics(PAGE.read_text(encoding="utf-8"))}, "docs.make_metrics", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
