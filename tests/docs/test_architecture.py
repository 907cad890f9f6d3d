"""docs/architecture.md names existing files, and draws the state machines of the code."""

from __future__ import annotations

import re
from pathlib import Path

from docs.make_tables import TABLES, with_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")


def test_paths_on_the_page_exist():
    named = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/.]*)`", PAGE)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_file_names_without_folder_exist():
    named = set(re.findall(r"`(\w+\.py)`", PAGE))
    assert len(named) > 15
    there = {path.name for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert named - there == set()


def test_linked_pages_exist():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert {"protocol.md", "strategies.md"} <= set(links)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_every_package_is_on_the_page():
    rooms = {
        str(file.parent.relative_to(ROOT)) for package in PACKAGES for file in (ROOT / package).glob("*/__init__.py")
    }
    assert len(rooms) > 25
    assert [room for room in sorted(rooms) if f"`{room}/`" not in PAGE] == []


def test_state_diagrams_match_the_tables_in_the_code():
    assert set(re.findall(r"<!-- table: ([\w ]+) -->", PAGE)) == set(TABLES)
    assert with_tables(PAGE) == PAGE, "run python -m docs.make_tables"
