"""Positions of models: tours from visits and from a coordinator's views, spares, lost hops, and a round's replay."""

from __future__ import annotations

from fleet_web.story.tour_history import length, past_round, present_tour, replayed
from sojourn.protocol.operator_messages import VisitNote
from sojourn.protocol.wire import HopEnd, HopEnds, TourView


def note(tour: int, hop: int, device: str, status: str = "done", reason: str = "", seconds: float = 1.0) -> VisitNote:
    return VisitNote(9.0, "job", 1, "train", tour, hop, "site", device, status, reason, 5, seconds)  # type: ignore[arg-type]


def view(**changes: object) -> TourView:
    fields = {"number": 3, "site": "site", "hops": ("a", "b", "c"), "hop": 1, "device": "b", "step": 2, "steps": 4,
            "lost": 0, "done": False}  # fmt: skip
    return TourView(**{**fields, **changes})  # type: ignore[arg-type]


def test_past_round_shows_declined_devices_and_spares():
    visits = [
        note(7, 0, "a"),
        note(7, 1, "b", "declined", "hot: 82 C"),
        note(7, 1, "x"),
        note(7, 2, "c", "lost", "silent"),
    ]
    (tour,) = past_round(1, visits).tours
    assert [hop.state for hop in tour.hops] == ["done", "done", "skipped"]
    assert [hop.mark for hop in tour.hops] == ["done", "done", "lost"]
    assert (tour.hops[1].planned, tour.hops[1].device, tour.hops[1].spare) == ("b", "x", True)
    assert [(it.device, it.state, it.reason, it.spare) for it in tour.hops[1].tries] == [
        ("b", "declined", "hot: 82 C", False),
        ("x", "done", "", True),
    ]
    assert tour.lost == 2


def test_only_training_tours_of_a_round_are_shown():
    visits = [note(number, 0, f"d{number}") for number in range(5)]
    assert [tour.number for tour in past_round(1, visits, tours=2).tours] == [3, 4]
    assert len(past_round(1, visits).tours) == 5


def test_current_tour_has_its_model_at_one_hop():
    tour = present_tour(view())
    assert [hop.state for hop in tour.hops] == ["done", "here", "waiting"]
    assert (tour.at, tour.share) == (1, 0.5)


def test_current_tour_shows_lost_hops_and_the_active_spare():
    ends = HopEnds((HopEnd(0, "a", "lost", "silent"), HopEnd(1, "b", "declined", "metered")))
    tour = present_tour(view(device="x", lost=2, ends=ends))
    assert [hop.mark for hop in tour.hops] == ["lost", "here", "waiting"]
    assert tour.hops[1].spare
    assert tour.hops[1].tries[0].reason == "metered"


def test_wave_is_at_all_its_devices_at_once():
    ends = HopEnds((HopEnd(4, "b", "done"),), merges=3)
    tour = present_tour(view(hop=4, device="c", ends=ends))
    assert [hop.state for hop in tour.hops] == ["here", "done", "here"]
    assert tour.merges == 3


def test_finished_tour_has_all_hops_done():
    assert {hop.state for hop in present_tour(view(done=True, hop=3, device=None)).hops} == {"done"}


def test_replay_runs_from_the_first_hop_to_the_final_state():
    travel = past_round(1, [note(1, 0, "a", seconds=2.0), note(1, 1, "b", "declined", "hot", 1.0), note(1, 1, "x")])
    assert length(travel) == 4.0
    states = [[hop.state for hop in replayed(travel, at).tours[0].hops] for at in (0.0, 2.5, 3.5, 4.0)]
    assert states == [["here", "waiting"], ["done", "here"], ["done", "here"], ["done", "done"]]
    assert replayed(travel, 1.0).tours[0].share == 0.5
    assert replayed(travel, 3.5).tours[0].hops[1].spare
    assert replayed(travel, 4.0).tours[0].done


def test_single_device_tours_are_shown_in_parallel():
    assert past_round(1, [note(1, 0, "a"), note(2, 0, "b")]).side_by_side
    assert not past_round(1, [note(1, 0, "a"), note(1, 1, "b")]).side_by_side
