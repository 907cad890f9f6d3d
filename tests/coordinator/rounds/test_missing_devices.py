"""Waiting rounds and skipped devices are reported with names and with what to do."""

from __future__ import annotations

import pytest

from coordinator.job_state import JobState
from coordinator.records import RoundPlanned
from coordinator.rounds.planning import NotYet, PlanRound, plan_round
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import text

AT = 1_790_000_000.0


def planned(state: JobState, here: tuple[str, ...], **more) -> RoundPlanned | NotYet:
    return plan_round(PlanRound(state, {"s1": here}, **more), MemoryBlobs())


def job(**changes) -> JobState:
    return JobState("job", text(**changes))


def test_job_that_cannot_start_names_devices_and_setting() -> None:
    work = planned(job(**{"fleet.devices": 4}), ("a", "b"), unable=("old",), offline={"c": AT, "d": AT + 60})
    assert work == NotYet(
        "4 devices are needed to begin; 2 are online (a, b); skipped, they do not offer what the job requires "
        "(objective sgd, encoding float32, estimator none, optimiser sgd); update their agents: old; "
        "offline: d (since 2026-09-21 14:14 UTC), c (since 2026-09-21 14:13 UTC). "
        "With fleet.devices = 2 it can begin with these (sojourn job continue job --devices 2)"
    )


def test_many_offline_devices_are_counted() -> None:
    work = planned(job(), (), offline={f"d{number:02}": AT for number in range(25)})
    assert isinstance(work, NotYet)
    assert work.reason.endswith("d09 (since 2026-09-21 14:13 UTC) and 15 more: sojourn fleet status")


def test_started_job_needs_only_what_its_arranger_needs() -> None:
    begun = job(**{"fleet.devices": 4})
    begun.fleet = dict.fromkeys("abcd")
    plan = planned(begun, ("a",), unable=("old",), offline={"b": AT, "stranger": AT})
    assert isinstance(plan, RoundPlanned)
    assert [tour.hops for tour in plan.tours] == [("a",)]
    (notice,) = plan.notices
    assert notice.startswith("skipped, they do not offer what the job requires")
    assert notice.endswith(": old")


@pytest.mark.parametrize("gone", [{}, {"b": AT, "stranger": AT}])
def test_short_arrangement_names_setting_and_offline_devices(
    gone: dict[str, float],
) -> None:
    begun = job(**{"arranger.name": "random", "arranger.sets": 3, "arranger.size": 1})
    begun.fleet = dict.fromkeys("abc")
    work = planned(begun, ("a", "c"), offline=gone)
    assert work == NotYet(
        "random needs at least 3 devices for 3 sets; 2 are online: arranger.sets = 2 would use all of them"
        + ("; offline: b (since 2026-09-21 14:13 UTC)" if gone else "")
    )
