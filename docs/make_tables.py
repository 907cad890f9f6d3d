"""Generate the diagrams of the state machines in docs/architecture.md from their tables.

python -m docs.make_tables            write the page
python -m docs.make_tables --check    report whether it is current
"""
# ruff: noqa: INP001  # a script in the folder of its page

from __future__ import annotations

import re
import sys
from pathlib import Path

from coordinator.machine.job_table import JOB
from coordinator.machine.rollout_progress import ROLLOUT
from docs.made_pages import write_or_check
from edge_agent.releases.orders import DEVICE_RELEASE
from edge_agent.visit_states import DEVICE_VISIT
from hierarchy.edge.tables import TOUR, VISIT

PAGE = Path(__file__).parent / "architecture.md"
TABLES = {table.name: table for table in (JOB, TOUR, VISIT, DEVICE_VISIT, ROLLOUT, DEVICE_RELEASE)}
_PLACE = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the page with the current diagrams."""
    return _PLACE.sub(lambda found: f"{found[1]}```mermaid\n{TABLES[found[2]].mermaid()}```\n{found[3]}", page)


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    return write_or_check({PAGE: with_tables(PAGE.read_text(encoding="utf-8"))}, "docs.make_tables", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
