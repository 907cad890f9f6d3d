"""Text from peers on a terminal: no control sequences, and one line."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from coordinator.console.job_progress import JobProgress
from coordinator.console.job_status import job_table
from coordinator.console.live_view import result_table, screen
from coordinator.console.release_tables import device_table, line_table
from sojourn import logs
from sojourn.errors import JobError
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.release import DeviceView, HealthRules, LineView, RolloutPlan
from sojourn.protocol.wire import JobView, RoundReport, TourView
from sojourn.text import LINE, clean, clean_lines, cleaned, quantity

EVIL = "hot\x1b]0;owned\x07\x1b[2J\x1b[31m [red]84[/red]\n12:00:00 info job done\u202e\x9b1m\x00"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("84 degrees, déjà vu", "84 degrees, déjà vu"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\b", "ab"),
        ("a\x1b[31mb\x1b[0m", "ab"),
        ("a\x9b31mb", "ab"),
        ("a\x1bP+q\x1b\\b", "ab"),
        ("a\nb\r\nc\td", "a b c d"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("a\x00\x07\x7fb", "ab"),
        ("a\u2028b", "ab"),
        ("\x1b", ""),
        ("\x1b]0;never ends", ""),
    ],
)
def test_terminal_control_characters_are_removed(text: str, safe: str) -> None:
    assert clean(text) == safe


def test_long_text_is_truncated() -> None:
    assert clean("x" * LINE) == "x" * LINE
    assert clean("x" * (LINE + 1)) == "x" * (LINE - 1) + "…"
    assert clean_lines("a\x1b[1m\nb") == "a\nb"


def test_log_line_stays_one_line() -> None:
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.setFormatter(logs.Lines("%(levelname)s %(message)s"))
    log = logging.getLogger("a-log-of-its-own")
    log.propagate, log.handlers = False, [handler]
    log.warning("declined: %s", EVIL)
    assert sink.getvalue() == "warning declined: hot [red]84[/red] 12:00:00 info job done\n"
    try:
        raise JobError(EVIL)
    except JobError:
        log.exception("failed")
    assert "\x1b" not in sink.getvalue()


def test_error_message_is_stripped_of_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    logs.report_error(JobError(EVIL))
    assert capsys.readouterr().err == "error: hot [red]84[/red]\n12:00:00 info job done\n"


def shown(*parts: object) -> str:
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=True, color_system=None, width=200)
    for part in parts:
        console.print(part)
    return sink.getvalue()


def test_job_view_shows_hostile_names_literally() -> None:
    report = RoundReport(1, 0.5, 1.0, 1, 1, 1, 5, 1.0, {}, (f"dev: {EVIL}",))
    tour = TourView(0, EVIL, (EVIL,), 0, EVIL, 1, 2, 0, False)
    view = cleaned(JobView(EVIL, EVIL, EVIL, "running", EVIL, 1, 2, "train", 0.5, 1, (tour,), (report,)))
    progress = JobProgress(view, view.history)
    text = shown(job_table([view]), result_table(progress), screen(progress, 200))
    assert "[red]84[/red]" in text
    assert not {"\x07", "\x00", "\u202e", "\x9b"} & set(text)
    assert "owned" not in text
    assert not any(line.startswith("12:00:00") for line in text.splitlines())


def test_rollout_view_shows_hostile_names_literally() -> None:
    device = DeviceView(EVIL, 1, 1, 1, EVIL, EVIL)
    view = cleaned(
        LineView(
            EVIL,
            "running",
            EVIL,
            1,
            1,
            0,
            0,
            None,
            (1.0,),
            1,
            {EVIL: 1},
            RolloutPlan(HealthRules(), undo=True),
            (device,),
        )
    )
    text = shown(line_table([view]), device_table(view))
    assert "[red]84[/red]" in text
    assert "\x1b]0;" not in text
    assert "owned" not in text


def test_cleaning_keeps_harmless_messages_unchanged() -> None:
    assert cleaned(Refused("ticket", "no such job")) == Refused("ticket", "no such job")


def test_noun_agrees_with_its_number() -> None:
    assert [quantity(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
