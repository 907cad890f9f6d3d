"""Today's code reads every record, snapshot and message of the baseline, and encodes the same values again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.baseline.archive import ADVICE, unpack_baseline, unread_kinds, unread_messages, unread_stores

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_baseline(tmp_path_factory.mktemp("baseline"))


def test_all_stores_decode_records_and_snapshots(baseline: Path) -> None:
    assert unread_stores(baseline) == [], ADVICE


def test_every_record_kind_decodes(baseline: Path) -> None:
    assert unread_kinds(baseline) == [], ADVICE


def test_every_message_kind_decodes(baseline: Path) -> None:
    assert unread_messages(baseline) == [], ADVICE
