"""The display of a job, from artificial views."""

from __future__ import annotations

import io
import re
from math import nan

import msgspec
import pytest
from rich.console import Console

from coordinator.console.dates import date_of, short_date
from coordinator.console.job_progress import JobProgress
from coordinator.console.job_status import failure_lines, job_table, models_line, times_line
from coordinator.console.live_view import lines, result_table, route, screen, show, show_rounds, trend
from sojourn.protocol.wire import JobModels, JobTimes, JobView, RoundReport, TourView

QUALITY = {"vts": 0.98123, "intra_cs": 0.3, "inter_cs": nan}
FIRST = RoundReport(1, 0.5, 1.25, 2, 8, 0, 520_000, 1.84, QUALITY)
SECOND = RoundReport(2, 0.912, 0.3, 2, 7, 1, 480_000, 0.5, QUALITY, ("pi-3: declined, hot: 81 degrees",))
TOUR = TourView(4, "site-1", ("pi-1", "pi-2", "pi-3", "pi-4"), 1, "pi-2", 30, 40, 0, False)
VIEW = JobView("first", "visit", "mlp", "running", "", 2, 10, "train", 0.912, 8, (TOUR,))
NOW = JobProgress(VIEW, (FIRST, SECOND))
NOON = 1_781_000_000.0
"""In June 2026."""


def before(**changes: object) -> JobProgress:
    return JobProgress(msgspec.structs.replace(VIEW, round=1, **changes), (FIRST,))


def shown(thing: object, width: int = 80, *, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, legacy_windows=False)
    console.print(thing)
    return file.getvalue()


def test_each_round_and_failure_prints_one_plain_line() -> None:
    assert lines(before(), NOW) == [
        "round 2/10 accuracy 91.2 % loss 0.3000 visits 7 failed 1 0.48 MB 500 ms",
        "  pi-3: declined, hot: 81 degrees",
    ]


def test_repeated_failures_are_counted() -> None:
    again = msgspec.structs.replace(SECOND, round=3, failures=(*SECOND.failures, "pi-4: declined, busy"))
    after = JobProgress(msgspec.structs.replace(VIEW, round=3), (FIRST, SECOND, again))
    assert lines(NOW, after)[1:] == ["  pi-4: declined, busy", "  and 1 as in earlier rounds"]


def test_long_job_table_fits_on_a_screen() -> None:
    rounds = tuple(msgspec.structs.replace(FIRST, round=at, accuracy=0.9 if at == 33 else 0.5) for at in range(1, 502))
    text = shown(result_table(JobProgress(VIEW, rounds)))
    rows = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert len(rows) <= 20
    assert {"33", "501"} <= set(rows)
    assert f"{len(rows)} of 501 rounds" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_each_round_is_printed_once(terminal: bool) -> None:
    """A live view draws over itself, so that the table follows it; plain lines have already shown every round."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    show_rounds(NOW, Console(file=file, width=80, force_terminal=terminal, legacy_windows=False))
    file.seek(0)
    text = file.read()
    assert ("91.2 %" in text) == terminal
    assert "VTS 0.981" in text


def test_status_change_prints_a_plain_line() -> None:
    waiting = before(status="waiting", detail="8 devices are needed; 3 are here")
    assert lines(None, waiting)[-1] == "job first: waiting, 8 devices are needed; 3 are here"
    assert lines(waiting, NOW)[-1] == "job first: running, training"
    assert lines(NOW, NOW) == []


def test_unknown_values_print_as_dash() -> None:
    blind = msgspec.structs.replace(FIRST, accuracy=nan, loss=nan, quality={})
    assert lines(None, JobProgress(VIEW, (blind,)))[0].startswith("round 1/10 accuracy - loss - visits 8")


def test_round_table_fits_in_80_columns() -> None:
    text = shown(result_table(NOW))
    assert all(len(line) <= 80 for line in text.splitlines())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["1", "50.0 %", "1.2500", "0.981", "8", "0", "0.52", "1.8 s"],
        ["2", "91.2 %", "0.3000", "0.981", "7", "1", "0.48", "500 ms"],
    ]


def test_mean_arrangement_metrics_follow_the_table() -> None:
    first = {"vts": 0.9, "intra_cs": 0.1, "inter_cs": nan, "balance": 0.3, "covered": 9.0, "cpd": 0.4}
    second = {"vts": 0.7, "intra_cs": 0.3, "inter_cs": 0.2, "balance": 0.5, "covered": 8.0, "cpd": 0.2}
    rounds = tuple(msgspec.structs.replace(it, quality=q) for it, q in zip(NOW.history, (first, second), strict=True))
    text = " ".join(shown(result_table(msgspec.structs.replace(NOW, history=rounds))).split())
    assert (
        "mean over rounds: VTS 0.800, Intra-CS 0.200, Inter-CS 0.200, balance 0.400, classes 8.500, CPD 0.300" in text
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_view_shows_job_rounds_and_tours(width: int) -> None:
    text = shown(screen(NOW, width), width)
    assert all(len(line) <= width for line in text.splitlines())
    for word in ("first", "visit, mlp, 8 devices", "running", "round 3/10", "91.2 %", "VTS 0.981", "site-1", "2/4"):
        assert word in text
    assert "pi-1 → pi-2 → pi-3" in text
    assert "round 2: pi-3: declined, hot" in text


def test_live_view_works_before_first_round() -> None:
    view = msgspec.structs.replace(VIEW, status="compiling", round=0, tours=(), accuracy=nan)
    text = shown(screen(JobProgress(view, ()), 80))
    assert "compiling" in text
    assert "no round has finished yet" in text


def test_compile_progress_is_shown_and_waiting_adds_no_line() -> None:
    looks = [
        JobProgress(msgspec.structs.replace(VIEW, status="compiling", detail=text, round=0, tours=()), ())
        for text in (
            "loading torch, 1 s",
            "checking (1 of 6), 11 s",
            "checking (1 of 6), 12 s",
            "checking (2 of 6), 12 s",
        )
    ]
    printed = [line for before, after in zip([None, *looks], looks, strict=False) for line in lines(before, after)]
    assert printed == [
        "job first: compiling: loading torch, 1 s",
        "job first: compiling: checking (1 of 6), 11 s",
        "job first: compiling: checking (2 of 6), 12 s",
    ]
    assert "checking (2 of 6), 12 s" in shown(screen(looks[-1], 80))


def test_visited_device_is_highlighted() -> None:
    spans = {str(span.style): route(TOUR, 50).plain[span.start : span.end] for span in route(TOUR, 50).spans}
    assert spans["bold reverse cyan"] == "pi-2"


def test_spare_device_appears_in_route() -> None:
    assert route(msgspec.structs.replace(TOUR, device="pi-9"), 50).plain == "pi-1 → pi-9 → pi-3 → pi-4"


def test_visited_device_stays_visible_in_long_route() -> None:
    long = msgspec.structs.replace(TOUR, hops=tuple(f"device-{n}" for n in range(40)), hop=30, device="device-30")
    plain = route(long, 40).plain
    assert plain.startswith("… → ")
    assert "device-30 → device-31" in plain[:40]


def test_many_tours_are_truncated() -> None:
    tours = tuple(msgspec.structs.replace(TOUR, number=number) for number in range(30))
    text = shown(screen(JobProgress(msgspec.structs.replace(VIEW, tours=tours), ()), 80))
    assert text.count("site-1") == 10
    assert "and 20 more tours" in text


def test_trend_is_drawn_as_bars() -> None:
    assert trend([0.0, 0.5, 1.0, nan]) == "▁▅█ "


def test_job_table_lists_jobs() -> None:
    text = shown(job_table([VIEW, msgspec.structs.replace(VIEW, job="second", status="queued", accuracy=nan, round=0)]))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["first", "running", "2/10", "91.2", "%", "-", "-", "-", "visit"],
        ["second", "queued", "0/10", "-", "-", "-", "-", "visit"],
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_show_follows_a_job_to_its_end(terminal: bool) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(file=file, width=80, force_terminal=terminal, legacy_windows=False)
    end = JobProgress(msgspec.structs.replace(VIEW, status="done", detail="10 rounds are done", tours=()), NOW.history)
    assert show(iter([before(), NOW, end]), console) is end
    file.seek(0)
    output = file.read()
    assert ("\x1b" in output) == terminal
    if not terminal:
        assert output.splitlines()[-1] == "job first: done, 10 rounds are done"


def test_job_table_with_dates_fits_in_80_columns() -> None:
    times = JobTimes(NOON, NOON + 4000.0, 3900.0)
    views = [
        msgspec.structs.replace(VIEW, job="a-rather-long-name-of-a-job", strategy="fedseq-inter-prox", times=times),
        msgspec.structs.replace(VIEW, status="compiling", accuracy=1.0, round=100, rounds=1000, times=JobTimes(NOON)),
    ]
    text = shown(job_table(views))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    assert "1 h 05 min" in text
    assert "model" not in text.splitlines()[0]
    assert "model" in shown(job_table(views, 120), 120).splitlines()[0]


def test_job_times_and_kept_models_are_printed() -> None:
    ended = msgspec.structs.replace(VIEW, status="done", times=JobTimes(NOON, NOON + 60.0, 45.5))
    assert re.fullmatch(r"submitted 2026-\d\d-\d\d \d\d:\d\d, ended 2026-\S+ \S+, took 45.5 s", times_line(ended))
    going = msgspec.structs.replace(VIEW, times=JobTimes(NOON, None, 45.5))
    assert times_line(going).endswith(", so far 45.5 s")
    assert times_line(VIEW) == ""
    kept = msgspec.structs.replace(VIEW, models=JobModels((1, 10, 18, 19, 20), 2))
    assert models_line(JobProgress(kept, NOW.history)) == (
        "stored models: round 1, 10, 18 to 20; the best is 2 (91.2 %)"
    )
    assert models_line(NOW) == ""


def test_coordinator_silence_and_recovery_print_once() -> None:
    silent = msgspec.structs.replace(NOW, silent_since=NOON)
    (line,) = lines(NOW, silent)
    assert re.fullmatch(r"no answer from the coordinator since \d\d:\d\d:\d\d: retrying .*", line)
    assert lines(silent, silent) == []
    assert lines(silent, NOW) == ["the coordinator answers again"]
    assert "no answer from the coordinator since" in shown(screen(silent, 100), 100)


@pytest.mark.parametrize("moment", [0.0, 1e11])
def test_any_timestamp_can_be_formatted(moment: float) -> None:
    assert date_of(moment)
    assert short_date(moment, NOON) != "-"
    assert date_of(None) == short_date(None, NOON) == "-"


def test_flagged_visits_are_counted_on_every_screen() -> None:
    line = "pi-1: would have been refused by the coordinator, because the loss went from 1 to 3; raise gate.loss_factor"
    flagged = msgspec.structs.replace(FIRST, failures=(line,), flagged=2)
    progress = JobProgress(VIEW, (flagged,))
    assert "visits that the gate would have refused: 2" in shown(screen(progress, 200), 200)
    assert "failed visits" not in shown(screen(progress, 200), 200)
    failures = failure_lines(progress)
    assert 'the gate would have refused 2 of 8 visits (gate = "report" refuses none)' in failures
    assert f"  {line} (round 1)" in failures
