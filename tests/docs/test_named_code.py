"""Pages name only tests and paths that exist, also after a file or a test was renamed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, pages

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("sojourn", "edge_agent", "hierarchy", "coordinator", "fleet_sim", "fleet_web", "tests", "benchmarks", "docs")
TOPICS = "sojourn/1/|sojourn/home-assistant/"
_PATH = re.compile(rf"`((?!{TOPICS})(?:{'|'.join(FOLDERS)})/[\w/.-]*)`")


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all test functions."""
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path, tests: set[str]) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named - tests == set()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_named_paths_exist(page: Path) -> None:
    named = set(_PATH.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not ((ROOT / path).exists() or (page.parent / path).exists())] == []
