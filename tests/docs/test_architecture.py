"""docs/architecture.md names files that exist, and draws the state machines as they are."""

from __future__ import annotations

import re
from pathlib import Path

from docs.make_tables import TABLES, with_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web")


def test_paths_on_the_page_lead_somewhere():
    named = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/.]*)`", PAGE)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_files_that_are_named_without_their_folder_are_somewhere():
    named = set(re.findall(r"`(\w+\.py)`", PAGE))
    assert len(named) > 15
    there = {path.name for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert named - there == set()


def test_links_lead_to_pages():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert {"protocol.md", "strategies.md"} <= set(links)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_every_room_is_on_the_page():
    rooms = {
        str(file.parent.relative_to(ROOT)) for package in PACKAGES for file in (ROOT / package).glob("*/__init__.py")
    }
    assert len(rooms) > 25
    assert [room for room in sorted(rooms) if f"`{room}/`" not in PAGE and room != "hierarchy/arrangers"] == []


def test_state_machines_are_drawn_from_the_tables_that_the_code_steps_through():
    assert set(re.findall(r"<!-- table: ([\w ]+) -->", PAGE)) == set(TABLES)
    assert with_tables(PAGE) == PAGE, "run python -m docs.make_tables"
