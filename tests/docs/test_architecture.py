"""docs/architecture.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim")


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
