"""A job's story, who took part, and several runs over each other."""

from __future__ import annotations

from math import nan

import msgspec
import pytest

from coordinator.console.following import JobProgress
from fleet_web.drawing.job_sections import failures, tiles
from fleet_web.story.comparison import MOST_RUNS, compared
from fleet_web.story.job_story import JobStory
from fleet_web.story.visit_book import VisitBook
from sojourn.errors import ConfigError
from sojourn.protocol.fleet_messages import VisitNote
from sojourn.protocol.wire import JobTimes, JobView, RoundReport, TourView


def report(number: int, accuracy: float, seconds: float = 2.0, **changes) -> RoundReport:
    told = RoundReport(number, accuracy, 1.0, 1, 3, 1, 2_000_000, seconds, {"vts": 0.5}, (), 10.0 * number)
    return msgspec.structs.replace(told, **changes)


def story(*accuracies: float, kind: str = "classification", status: str = "running", tours=()) -> JobStory:
    times = JobTimes(0.0, None, 9.0, kind)  # type: ignore[arg-type]
    view = JobView("j", "visit", "mlp", status, "", len(accuracies), 5, "train", 0.5, 4, tours, times=times)  # type: ignore[arg-type]
    return JobStory(JobProgress(view, tuple(report(at, each) for at, each in enumerate(accuracies, 1))))


def note(round_: int, device: str, status: str = "done", reason: str = "", phase: str = "train") -> VisitNote:
    return VisitNote(1.0, "j", round_, phase, round_, 0, "site", device, status, reason, 5, 1.0)  # type: ignore[arg-type]


def test_a_course_stands_by_round_time_and_bytes():
    told = story(0.1, 0.4)
    assert told.across("round") == [1.0, 2.0]
    assert told.across("time") == [10.0, 20.0]
    assert told.across("bytes") == [2.0, 4.0]
    assert told.course("accuracy") == [0.1, 0.4]
    assert told.course("vts") == [0.5, 0.5]
    assert told.measures == ["vts"]


def test_tours_are_under_way_only_while_the_job_is():
    tours = (TourView(0, "s", ("a",), 0, "a", 0, 1, 0, False),)
    assert story(0.1, tours=tours).under_way.round == 2  # type: ignore[union-attr]
    assert story(0.1, tours=tours, status="done").under_way is None


def test_a_coordinator_that_does_not_tell_which_hop_was_lost_is_named():
    tours = (TourView(0, "s", ("a", "b"), 1, "b", 0, 1, 1, False),)
    assert "older" in story(0.1, tours=tours).under_way.gap  # type: ignore[union-attr]


def test_what_happened_is_told_once_with_its_rounds():
    told = story(0.1, 0.2, 0.3)
    history = tuple(msgspec.structs.replace(it, failures=("a: hot",)) for it in told.history)
    assert JobStory(JobProgress(told.view, history)).happened() == ["a: hot (rounds 1 to 3)"]


def test_who_never_took_part_is_there_with_the_reason():
    visits = [
        note(1, "c", "declined", "failed: hot"),
        note(1, "a"),
        note(1, "b", "declined", "data: empty", "estimate"),
    ]
    shares = VisitBook(visits).shares(dict.fromkeys("abcd", "site"))
    assert [(it.device, it.done, it.failed, it.why) for it in shares] == [
        ("a", 1, 0, ""),
        ("c", 0, 1, "declined: hot"),
        ("b", 0, 0, "declined to be estimated: empty"),
        ("d", 0, 0, "no round has taken it"),
    ]


def test_a_book_takes_in_only_newer_rounds_and_says_what_it_does_not_know():
    book = VisitBook([note(2, "b"), note(1, "a")])
    book.extended([note(3, "c"), note(2, "b")])
    assert book.rounds == [1, 2, 3]
    assert len(book.travel(2).tours) == 1
    assert "not known" in book.travel(9).gap


def test_runs_are_compared_by_their_last_best_and_what_a_target_took():
    both = compared({"one": story(0.2, 0.9, 0.8), "two": story(0.1, 0.3)})
    first, second = both.rows(both.goal("85 %"))
    assert (first["accuracy last"], first["best"]) == ("80.0 %", "90.0 % (round 2)")
    assert (first["rounds to target"], first["time to target"], first["MB to target"]) == ("2", "20.0 s", "4.0")
    assert second["rounds to target"] == "not reached"
    assert both.goal("0.85") == both.goal("85") == both.goal("accuracy >= 0.85")
    assert both.goal(" ") is None


@pytest.mark.parametrize("typed", ["much", "nan", "accuracy <= 0.5", "-3", "1e999", "rmse <= 1"])
def test_a_target_that_makes_no_sense_is_refused_with_what_to_write(typed):
    with pytest.raises(ConfigError, match="target"):
        compared({"one": story(0.2)}).goal(typed)


def test_runs_that_learn_different_things_are_refused_by_name():
    with pytest.raises(ConfigError, match="one: classification; two: regression"):
        compared({"one": story(0.2), "two": story(nan, kind="regression")})


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        compared({})
    with pytest.raises(ConfigError, match="not one round is finished of two"):
        compared({"one": story(0.2), "two": story()})
    with pytest.raises(ConfigError, match=f"at most {MOST_RUNS}"):
        compared({str(at): story(0.2) for at in range(MOST_RUNS + 1)})


def test_without_a_figure_nothing_is_best():
    assert compared({"plan": story(nan)}).rows()[0]["best"] == "-"


def test_the_page_shows_what_the_gate_refused_and_would_have_refused() -> None:
    why = "by the coordinator, because the loss went from 1 to 3; raise gate.loss_factor"
    flagged = f"would have been refused {why}"
    book = VisitBook(
        [note(1, "pi-1", "refused", why), note(1, "pi-2", reason=flagged), note(1, "pi-3", reason="data: odd")]
    )
    told = story(0.5)
    shown = str(failures(told, book.losses(), book.flagged()))
    assert f"refused: {why}" in shown
    assert flagged.replace("refused by", "refused: by") in shown
    assert "Visits that the gate would have refused" in shown
    of_rounds = JobStory(JobProgress(told.view, (report(1, 0.5, flagged=2),)))
    assert "visits that the gate would have refused" in str(tiles(of_rounds))
    assert "visits that the gate" not in str(tiles(told))


def test_lost_visits_without_known_reasons_are_counted_all_the_same() -> None:
    shown = str(failures(story(0.5), ()))
    assert "1 failed visits, whose reasons are not known." in shown
