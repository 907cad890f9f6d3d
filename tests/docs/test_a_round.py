"""docs/a-round.md follows a round through the code: the functions are there, and they are called in that order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fleet_sim.small_fleet import kit_of_jobs, run, visit

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "a-round.md").read_text(encoding="utf-8")
TOLD = re.findall(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
SEED = 1811
"""A seed of this test's own: what another test has trained is remembered, not trained again."""


def calls_of_a_round() -> list[tuple[str, str]]:
    """The functions of ours that run in the second round of a VISIT job, in the order of their calls."""
    calls: list[tuple[str, str]] = []
    prefix = f"{ROOT}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            calls.append((frame.f_code.co_qualname, frame.f_code.co_filename.removeprefix(prefix)))

    kit_of_jobs()  # compiling is no part of a round, and takes three times as long when every call is noted
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        done = run(visit(rounds=2, fleet__devices=4, seed=SEED))
    finally:
        sys.setprofile(before)
    assert (done.state.status, len(done.state.history)) == ("done", 2)
    planned = [at for at, call in enumerate(calls) if call == TOLD[0]]
    return calls[planned[-1] :]


def test_the_page_names_the_functions_of_a_round_in_the_order_of_their_calls() -> None:
    assert len(TOLD) > 40
    rest = iter(calls_of_a_round())
    for told in TOLD:
        assert told in rest, f"{told[0]} of {told[1]} is not called here: what has become of it?"


def test_each_journal_record_and_message_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", PAGE))
    assert len(named) > 12
    files = [*ROOT.glob("*/**/records.py"), ROOT / "sojourn" / "protocol" / "messages.py"]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name in named if not re.search(rf"^class {name}\b", source, re.MULTILINE)] == []


def test_the_page_can_be_read_in_five_minutes() -> None:
    assert len(PAGE.split()) < 1200
