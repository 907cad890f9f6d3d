"""A round that waits, and devices that take no part, are told with names and with what to do."""

from __future__ import annotations

import pytest

from coordinator.records import RoundPlanned
from coordinator.rounds.planning import NotYet, PlanRound, plan_round
from coordinator.state import JobState
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import text

AT = 1_790_000_000.0


def planned(state: JobState, here: tuple[str, ...], **more) -> RoundPlanned | NotYet:
    return plan_round(PlanRound(state, {"s1": here}, **more), MemoryBlobs())


def job(**changes) -> JobState:
    return JobState("job", text(**changes))


def test_a_job_that_cannot_begin_names_who_is_here_who_went_and_the_setting() -> None:
    work = planned(job(**{"fleet.devices": 4}), ("a", "b"), unable=("old",), gone={"c": AT, "d": AT + 60})
    assert work == NotYet(
        "4 devices are needed to begin; 2 are here (a, b); left out, without all that the job asks for (objective sgd, "
        "encoding float32, estimator none, optimiser sgd), update their agents: old; gone: d (since 2026-09-21 14:14 "
        "UTC), c (since 2026-09-21 14:13 UTC). With fleet.devices = 2 it would begin with these "
        "(sojourn job continue job --devices 2)"
    )


def test_many_that_went_are_counted() -> None:
    work = planned(job(), (), gone={f"d{number:02}": AT for number in range(25)})
    assert isinstance(work, NotYet)
    assert work.reason.endswith("d09 (since 2026-09-21 14:13 UTC) and 15 more: sojourn fleet status")


def test_a_job_that_has_begun_needs_only_what_its_arrangement_does() -> None:
    begun = job(**{"fleet.devices": 4})
    begun.fleet = dict.fromkeys("abcd")
    plan = planned(begun, ("a",), unable=("old",), gone={"b": AT, "stranger": AT})
    assert isinstance(plan, RoundPlanned)
    assert [tour.hops for tour in plan.tours] == [("a",)]
    (notice,) = plan.notices
    assert notice.startswith("left out, without all that the job asks for")
    assert notice.endswith(": old")


@pytest.mark.parametrize("gone", [{}, {"b": AT, "stranger": AT}])
def test_an_arrangement_that_needs_more_names_the_setting_and_the_jobs_devices_that_went(
    gone: dict[str, float],
) -> None:
    begun = job(**{"arranger.name": "random", "arranger.sets": 3, "arranger.size": 1})
    begun.fleet = dict.fromkeys("abc")
    work = planned(begun, ("a", "c"), gone=gone)
    assert work == NotYet(
        "random needs at least 3 devices for 3 sets; 2 are here: with arranger.sets = 2 it could make do with them"
        + ("; gone: b (since 2026-09-21 14:13 UTC)" if gone else "")
    )
