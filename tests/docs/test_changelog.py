"""CHANGELOG.md lists what is not released, then each release with its date, the newest first."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import Version

from sojourn import __version__

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")


def test_changelog_begins_with_unreleased_changes() -> None:
    assert re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)[0] == "[Unreleased]"


def test_releases_are_dated_sorted_and_end_at_this_version() -> None:
    """No version before 1.0 is a release."""
    headings = re.findall(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)
    assert len(headings) == len(re.findall(r"^## \[\d", CHANGELOG, re.MULTILINE))
    assert headings == sorted(headings, key=Version, reverse=True)
    assert headings[:1] == ([__version__] if Version(__version__) >= Version("1.0") else [])
