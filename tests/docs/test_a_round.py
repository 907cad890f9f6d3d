"""docs/a-round.md follows a round through the code: the functions exist, and are called in that order."""

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
LISTED = re.findall(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
SEED = 1811
"""A seed that no other test uses: results of other tests are cached, not trained again."""


def calls_of_a_round() -> list[tuple[str, str]]:
    """Return the project's functions that run in the second round of a VISIT job, in the order of their calls."""
    calls: list[tuple[str, str]] = []
    prefix = f"{ROOT}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            calls.append((frame.f_code.co_qualname, frame.f_code.co_filename.removeprefix(prefix)))

    kit_of_jobs()  # compiling is not part of a round, and takes three times as long while calls are recorded
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        done = run(visit(rounds=2, fleet__devices=4, seed=SEED))
    finally:
        sys.setprofile(before)
    assert (done.state.status, len(done.state.history)) == ("done", 2)
    planned = [at for at, call in enumerate(calls) if call == LISTED[0]]
    return calls[planned[-1] :]


def test_page_lists_functions_of_a_round_in_call_order() -> None:
    assert len(LISTED) > 40
    rest = iter(calls_of_a_round())
    for function in LISTED:
        assert function in rest, f"{function[0]} of {function[1]} is not called here: what has become of it?"


def test_named_records_and_messages_exist() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", PAGE))
    assert len(named) > 12
    files = [*ROOT.glob("*/**/records.py"), ROOT / "sojourn" / "protocol" / "messages.py"]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name in named if not re.search(rf"^class {name}\b", source, re.MULTILINE)] == []


def test_page_takes_five_minutes_to_read() -> None:
    assert len(PAGE.split()) < 1200
