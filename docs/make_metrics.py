"""Generate the tables of metrics in docs/operations.md from the catalogue.

python -m docs.make_metrics            write the page
python -m docs.make_metrics --check    report whether it is current
"""
# ruff: noqa: INP001  # a script in the folder of its page

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

from docs.made_pages import write_or_check
from sojourn.metrics.catalogue import METRICS, Reporter

PAGE = Path(__file__).parent / "operations.md"
_PLACE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_metrics(page: str) -> str:
    """Return the page with the current tables."""
    return _PLACE.sub(lambda found: found[1] + "\n".join(map(_table, get_args(Reporter))) + found[2], page)


def _table(reporter: Reporter) -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.what} |"
        for metric in METRICS
        if metric.reporter == reporter
    ]
    return "\n".join(
        [
            f"**{reporter[0].upper()}{reporter[1:]}**",
            "",
            "| name | kind | labels | what |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    return write_or_check({PAGE: with_metrics(PAGE.read_text(encoding="utf-8"))}, "docs.make_metrics", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
