"""docs/upgrading.md has a section for the version that this is, and its new import paths lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from sojourn import __version__

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
MOVED = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| (.*)\|$", PAGE, re.MULTILINE)


def test_the_newest_section_is_for_this_version() -> None:
    before, after = re.findall(r"^## ([\d.]+) to ([\d.]+)$", PAGE, re.MULTILINE)[0]
    assert after == __version__
    assert before != after


def test_the_changelog_has_this_version_below_what_is_not_released() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [name for name, _ in headings][:2] == ["Unreleased", __version__]
    assert headings[1][1]


@pytest.mark.parametrize(("before", "now", "names"), MOVED, ids=[before for before, _, _ in MOVED])
def test_what_moved_is_where_the_page_says(before: str, now: str, names: str) -> None:
    module = importlib.import_module(now)
    for name in re.findall(r"`(\w+)`", names):
        assert hasattr(module, name), f"{now} has no {name}"


def test_the_table_of_moved_paths_is_read() -> None:
    assert len(MOVED) > 10
