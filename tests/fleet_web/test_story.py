"""The page model of a job, its participating devices, and comparisons of several runs."""

from __future__ import annotations

from math import nan

import msgspec
import pytest

from coordinator.console.job_progress import JobProgress
from fleet_web.drawing.job_sections import failures, tiles
from fleet_web.story.comparison import MAX_RUNS, compared
from fleet_web.story.job_story import JobStory, VisitBook
from sojourn.errors import ConfigError
from sojourn.protocol.operator_messages import VisitNote
from sojourn.protocol.wire import JobTimes, JobView, RoundReport, TourView


def report(number: int, accuracy: float, seconds: float = 2.0, **changes) -> RoundReport:
    made = RoundReport(number, accuracy, 1.0, 1, 3, 1, 2_000_000, seconds, {"vts": 0.5}, (), 10.0 * number)
    return msgspec.structs.replace(made, **changes)


def story(*accuracies: float, kind: str = "classification", status: str = "running", tours=()) -> JobStory:
    times = JobTimes(0.0, None, 9.0, kind)  # type: ignore[arg-type]
    view = JobView("j", "visit", "mlp", status, "", len(accuracies), 5, "train", 0.5, 4, tours, times=times)  # type: ignore[arg-type]
    return JobStory(JobProgress(view, tuple(report(at, each) for at, each in enumerate(accuracies, 1))))


def note(round_: int, device: str, status: str = "done", reason: str = "", phase: str = "train") -> VisitNote:
    return VisitNote(1.0, "j", round_, phase, round_, 0, "site", device, status, reason, 5, 1.0)  # type: ignore[arg-type]


def test_course_is_available_by_round_time_and_bytes():
    job_story = story(0.1, 0.4)
    assert job_story.across("round") == [1.0, 2.0]
    assert job_story.across("time") == [10.0, 20.0]
    assert job_story.across("bytes") == [2.0, 4.0]
    assert job_story.course("accuracy") == [0.1, 0.4]
    assert job_story.course("vts") == [0.5, 0.5]
    assert job_story.measures == ["vts"]


def test_tours_are_in_progress_only_while_the_job_runs():
    tours = (TourView(0, "s", ("a",), 0, "a", 0, 1, 0, False),)
    assert story(0.1, tours=tours).under_way.round == 2  # type: ignore[union-attr]
    assert story(0.1, tours=tours, status="done").under_way is None


def test_repeated_failure_is_listed_once_with_its_rounds():
    job_story = story(0.1, 0.2, 0.3)
    history = tuple(msgspec.structs.replace(it, failures=("a: hot",)) for it in job_story.history)
    assert JobStory(JobProgress(job_story.view, history)).notices() == ["a: hot (rounds 1 to 3)"]


def test_devices_that_never_took_part_are_listed_with_reason():
    visits = [
        note(1, "c", "declined", "failed: hot"),
        note(1, "a"),
        note(1, "b", "declined", "data: empty", "estimate"),
    ]
    shares = VisitBook(visits).shares(dict.fromkeys("abcd", "site"))
    assert [(it.device, it.done, it.failed, it.why) for it in shares] == [
        ("a", 1, 0, ""),
        ("c", 0, 1, "declined: hot"),
        ("b", 0, 0, "declined the estimation: empty"),
        ("d", 0, 0, "no round selected it"),
    ]


def test_visit_book_adds_only_newer_rounds_and_names_gaps():
    book = VisitBook([note(2, "b"), note(1, "a")])
    book.extend([note(3, "c"), note(2, "b")])
    assert book.rounds == [1, 2, 3]
    assert len(book.travel(2).tours) == 1
    assert "unknown" in book.travel(9).gap


def test_runs_are_compared_by_last_best_and_target_cost():
    both = compared({"one": story(0.2, 0.9, 0.8), "two": story(0.1, 0.3)})
    first, second = both.rows(both.goal("85 %"))
    assert (first["accuracy last"], first["best"]) == ("80.0 %", "90.0 % (round 2)")
    assert (first["rounds to target"], first["time to target"], first["MB to target"]) == ("2", "20.0 s", "4.0")
    assert second["rounds to target"] == "not reached"
    assert both.goal("0.85") == both.goal("85") == both.goal("accuracy >= 0.85")
    assert both.goal(" ") is None


@pytest.mark.parametrize("typed", ["much", "nan", "accuracy <= 0.5", "-3", "1e999", "rmse <= 1"])
def test_invalid_target_is_refused_with_a_hint(typed):
    with pytest.raises(ConfigError, match="target"):
        compared({"one": story(0.2)}).goal(typed)


def test_runs_of_different_tasks_are_refused_by_name():
    with pytest.raises(ConfigError, match="one: classification; two: regression"):
        compared({"one": story(0.2), "two": story(nan, kind="regression")})


def test_incomparable_runs_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        compared({})
    with pytest.raises(ConfigError, match="two: no finished round to compare yet"):
        compared({"one": story(0.2), "two": story()})
    with pytest.raises(ConfigError, match=f"at most {MAX_RUNS}"):
        compared({str(at): story(0.2) for at in range(MAX_RUNS + 1)})


def test_plan_without_accuracy_has_no_best_round():
    assert compared({"plan": story(nan)}).rows()[0]["best"] == "-"


def test_page_shows_visits_the_gate_refused_or_would_refuse() -> None:
    why = "by the coordinator, because the loss went from 1 to 3; raise gate.loss_factor"
    flagged = f"would have been refused {why}"
    book = VisitBook(
        [note(1, "pi-1", "refused", why), note(1, "pi-2", reason=flagged), note(1, "pi-3", reason="data: odd")]
    )
    job_story = story(0.5)
    shown = str(failures(job_story, book.losses(), book.flagged()))
    assert f"refused: {why}" in shown
    assert flagged.replace("refused by", "refused: by") in shown
    assert "Visits the gate would have refused" in shown
    of_rounds = JobStory(JobProgress(job_story.view, (report(1, 0.5, flagged=2),)))
    assert "visits the gate would have refused" in str(tiles(of_rounds))
    assert "visits that the gate" not in str(tiles(job_story))


def test_lost_visits_without_reasons_are_counted() -> None:
    shown = str(failures(story(0.5), ()))
    assert "1 failed visits with unknown reasons." in shown
