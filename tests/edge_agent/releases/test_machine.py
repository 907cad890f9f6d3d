"""Releases on a device: which orders are obeyed, what is fetched, tried and served, and what survives a restart."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from edge_agent.records import ReleaseEnded, ReleaseOrdered, ServedRelease
from edge_agent.releases.machine import LINES
from edge_agent.releases.work import Install, Installed, Usage, Withdraw, Withdrawn
from edge_agent.training.work import Train
from sojourn.node.machine import (
    Append,
    Did,
    DidNot,
    Do,
    Effect,
    Event,
    Linked,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    Told,
    Undo,
    Woke,
)
from sojourn.protocol.release import Goods, Health, Order, Pace, Parcel, SignedOrder, sign
from sojourn.protocol.release_messages import Release, ReleaseReport
from tests.edge_agent.agent_bench import EDGE, EPOCH, KIT, MODEL, Bench, trained, visit
from tests.edge_agent.releases.serving_bench import (
    ELSEWHERE,
    FINE,
    OTHER,
    SIGNER,
    ServingBench,
    arrive,
    bench,
    goods,
    installed,
    line,
    order,
    release,
    reports,
    served,
    serving,
    works,
)
from tests.sojourn.store.replays import sends

# --- one release


def test_an_order_is_kept_before_anything_leaves_and_its_goods_are_fetched() -> None:
    it = bench()
    effects = it.ask(release(1, 1))
    first = effects[0]
    assert isinstance(first, Append)
    assert first.sync
    assert first.record == ReleaseOrdered("e", order(1, 1))
    pulls = [effect for effect in effects if isinstance(effect, Pull)]
    assert [(pull.ref.digest, pull.source) for pull in pulls] == [
        (goods(1).graph.digest, EDGE),
        (goods(1).card.digest, EDGE),
    ]
    assert reports(effects) == [(1, 0, "fetching")]
    assert works(effects) == []
    assert it.agent.live() >= {goods(1).graph.digest, goods(1).card.digest}


def test_it_is_tried_when_all_is_here_and_then_served() -> None:
    it = bench()
    it.ask(release(1, 1))
    assert works(it.tell(Pulled(goods(1).card.digest))) == []
    assert works(it.tell(Pulled(goods(1).graph.digest))) == [Install("l", 1, goods(1))]
    assert reports(it.ask(release(1, 1))) == [(1, 0, "checking")]
    effects = installed(it)
    (appended,) = [effect for effect in effects if isinstance(effect, Append)]
    assert appended.sync
    assert appended.record == ReleaseEnded("l", "serving", "", FINE)
    assert sends(effects) == [ReleaseReport("l", 1, 1, "serving", "", FINE)]
    assert served(it) == 1
    assert not it.agent.live() & {goods(1).graph.digest, goods(1).card.digest}


def test_goods_that_are_one_blob_are_fetched_once() -> None:
    it = bench()
    parcel = goods(1).graph
    signed = sign(Order("f", "l", 1, 1, Goods(parcel, parcel)), SIGNER)
    pulls = [effect for effect in it.ask(Release(signed, None, None)) if isinstance(effect, Pull)]
    assert len(pulls) == 1
    assert works(it.tell(Pulled(parcel.digest))) == [Install("l", 1, Goods(parcel, parcel))]


def test_an_order_that_comes_again_is_answered_and_not_obeyed_again() -> None:
    it = serving()
    for serial in (1, 1):
        effects = it.ask(release(serial, 1))
        assert reports(effects) == [(1, 1, "serving")]
        assert len(effects) == 1


def test_a_release_that_fails_its_trial_leaves_what_is_served() -> None:
    it = serving()
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.tell(DidNot(it.work, "failed", "x" * 5000))
    (report,) = sends(effects)
    assert (report.serial, report.version, report.state, len(report.detail)) == (2, 1, "failed", 2000)
    assert works(effects) == []
    assert served(it) == 1
    assert reports(it.ask(release(2, 2))) == [(2, 1, "failed")]


def test_a_newer_version_takes_the_place_of_the_older_one_which_is_kept() -> None:
    it = serving()
    it.ask(release(3, 2))
    assert served(it) == 1
    arrive(it, 2)
    installed(it)
    assert (line(it).serving, line(it).previous) == (ServedRelease(2, goods(2)), ServedRelease(1, goods(1)))


# --- what is not obeyed


@pytest.mark.parametrize(
    ("key", "message", "why"),
    [
        ("", release(5, 2), "no release key"),
        (None, release(5, 2, OTHER), "not signed with the fleet's release key"),
        (None, release(5, 2, fleet="g"), "for the fleet 'g'"),
    ],
)
def test_an_order_that_is_not_for_us_or_of_nobody_we_trust_is_refused_and_forgotten(key, message, why) -> None:
    it = bench(key)
    effects = it.ask(message)
    (report,) = sends(effects)
    assert (report.serial, report.version, report.state) == (5, 0, "refused")
    assert why in report.detail
    assert it.records == []
    assert it.agent.state.lines == {}


def test_a_refusal_says_what_is_served() -> None:
    it = serving(3)
    assert reports(it.ask(release(9, 4, OTHER))) == [(9, 3, "refused")]
    assert line(it).order.serial == 1


def test_a_changed_order_is_refused_and_an_unreadable_one_is_passed_over() -> None:
    it = bench()
    signed = sign(order(1, 1), SIGNER)
    other = SignedOrder(sign(order(1, 2), SIGNER).order, signed.signature)
    assert reports(it.ask(Release(other, None, None))) == [(1, 0, "refused")]
    for rubbish in (b"", b"rubbish", signed.order.replace(b"l", b"\xff"), signed.order + b"\x00"):
        assert sends(it.ask(Release(SignedOrder(rubbish, signed.signature), None, None))) == []
    assert it.records == []


def test_an_older_serial_is_answered_with_what_we_know() -> None:
    it = serving(2, serial=4)
    effects = it.ask(release(3, 9))
    assert reports(effects) == [(4, 2, "serving")]
    assert len(effects) == 1


def test_an_older_version_takes_a_rollback() -> None:
    it = serving(2)
    effects = it.ask(release(2, 1))
    assert reports(effects) == [(2, 2, "refused")]
    assert works(effects) == []
    effects = it.ask(release(3, 1, rollback=True))
    assert reports(effects) == [(3, 2, "fetching")]
    arrive(it, 1)
    installed(it)
    assert served(it) == 1


def test_to_serve_nothing_takes_a_rollback_too() -> None:
    it = serving(2)
    assert reports(it.ask(release(2, 0))) == [(2, 2, "refused")]
    effects = it.ask(release(3, 0, rollback=True))
    assert works(effects) == [Withdraw("l")]
    assert reports(it.tell(Did(it.work, Withdrawn()))) == [(3, 0, "withdrawn")]
    assert served(it) == 0


def test_one_line_more_than_a_device_may_serve_is_refused() -> None:
    it = bench()
    for number in range(LINES):
        it.ask(release(1, 1, line=f"line-{number}"))
    assert len(it.agent.state.lines) == LINES == 16
    effects = it.ask(release(1, 1, line="one-more"))
    assert reports(effects) == [(1, 0, "refused")]
    assert "16 model lines already" in sends(effects)[0].detail
    assert reports(it.ask(release(2, 2, line="line-3"))) == [(2, 0, "fetching")]


# --- going back


def test_going_back_takes_no_trial_and_no_fetching() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    effects = it.ask(release(3, 1, rollback=True))
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert not [effect for effect in effects if isinstance(effect, Pull)]
    assert reports(installed(it, Health())) == [(3, 1, "serving")]
    assert (line(it).serving, line(it).previous) == (ServedRelease(1, goods(1)), ServedRelease(2, goods(2)))


def test_what_should_be_here_and_is_damaged_is_fetched_anew() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    it.ask(release(3, 1, rollback=True))
    effects = it.tell(DidNot(it.work, "failed", "the graph is not here"))
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert line(it).state == "fetching"
    assert works(arrive(it, 1)) == [Install("l", 1, goods(1))]
    assert reports(installed(it)) == [(3, 1, "serving")]


def test_what_is_served_already_is_served_at_once() -> None:
    it = serving(1)
    effects = it.ask(release(2, 1))
    assert len([effect for effect in effects if isinstance(effect, Append)]) == 2
    assert works(effects) == []
    assert sends(effects) == [ReleaseReport("l", 2, 1, "serving", "", FINE)]


def test_the_same_goods_under_another_version_are_served_under_it() -> None:
    it = serving(1)
    parcel = goods(1)
    effects = it.ask(Release(sign(Order("f", "l", 2, 5, parcel), SIGNER), None, None))
    assert [effect.ref.digest for effect in effects if isinstance(effect, Pull)] == [
        parcel.graph.digest,
        parcel.card.digest,
    ]
    assert works(arrive(it, 1)) == [Install("l", 5, parcel)]
    assert reports(installed(it)) == [(2, 5, "serving")]


def test_after_nothing_was_served_the_one_before_comes_back_without_a_trial() -> None:
    it = serving(1)
    it.ask(release(2, 0, rollback=True))
    it.tell(Did(it.work, Withdrawn()))
    assert works(it.ask(release(3, 1))) == [Install("l", 1, goods(1), known=True)]


# --- superseded


def test_a_newer_order_while_fetching_fetches_the_newer_goods() -> None:
    it = bench()
    it.ask(release(1, 1))
    it.tell(Pulled(goods(1).graph.digest))
    it.ask(release(2, 2))
    assert works(it.tell(Pulled(goods(1).card.digest))) == []
    assert works(arrive(it, 2)) == [Install("l", 2, goods(2))]
    assert not it.agent.live() & {goods(1).graph.digest}


def test_a_newer_order_while_trying_ends_the_trial_and_what_is_late_of_it_is_not_heard() -> None:
    it = bench()
    it.ask(release(1, 1))
    arrive(it, 1)
    old = it.work
    effects = it.ask(release(2, 2))
    assert [effect for effect in effects if isinstance(effect, Undo)] == [Undo(old)]
    assert it.agent._releases.trying is False
    arrive(it, 2)
    assert it.work != old
    it.tell(Did(old, Installed(FINE)))
    assert line(it).state == "fetching"
    assert reports(installed(it)) == [(2, 2, "serving")]


def test_back_to_what_is_served_while_another_is_tried_makes_sure_of_it() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.ask(release(3, 1, rollback=True))
    # The trial may have swapped version 2 in just before it was ended.
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert line(it).state == "fetching"
    effects = installed(it, Health())
    assert sends(effects) == [ReleaseReport("l", 3, 1, "serving", "", FINE)]
    assert line(it).unsure is False


def test_a_refusal_while_another_is_tried_makes_sure_of_what_is_served() -> None:
    it = serving(3)
    it.ask(release(2, 4))
    arrive(it, 4)
    effects = it.ask(release(3, 2))
    assert reports(effects) == [(3, 3, "refused")]
    assert works(effects) == [Install("l", 3, goods(3), known=True)]
    effects = installed(it, Health())
    assert effects == []
    assert line(it).state == "refused"


def test_what_takes_no_time_is_let_be_and_what_follows_waits_for_it() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    it.ask(release(3, 1, rollback=True))
    back = it.work
    it.ask(release(4, 3))
    assert works(arrive(it, 3)) == []
    effects = it.tell(Did(back, Installed(Health())))
    assert reports(effects) == []
    assert works(effects) == [Install("l", 3, goods(3))]
    assert served(it) == 2
    assert reports(installed(it)) == [(4, 3, "serving")]


# --- a program cannot load it


def failing(version=2, why="no such operator") -> Told:
    return Told(Usage("l", version, Health(), why))


def fallen() -> tuple[ServingBench, list[Any]]:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    return it, it.tell(failing())


def test_a_release_that_a_program_cannot_load_gives_way_to_the_one_before() -> None:
    it, effects = fallen()
    (appended,) = [effect for effect in effects if isinstance(effect, Append)]
    assert appended.sync
    assert appended.record == ReleaseEnded("l", "fell-back", "no such operator", None)
    assert [(r.serial, r.version, r.state, r.detail) for r in sends(effects)] == [
        (2, 1, "fell-back", "no such operator")
    ]
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert installed(it, Health()) == []
    assert line(it).state == "fell-back"
    assert (line(it).serving, line(it).previous) == (ServedRelease(1, goods(1)), None)
    assert it.tell(failing()) == []


def test_the_first_release_that_cannot_be_loaded_is_withdrawn() -> None:
    it = serving(1)
    effects = it.tell(failing(1))
    assert reports(effects) == [(1, 0, "fell-back")]
    assert works(effects) == [Withdraw("l")]
    assert it.tell(Did(it.work, Withdrawn())) == []


def test_the_order_back_after_a_fall_makes_sure_that_it_was_one() -> None:
    it, _ = fallen()
    falling = it.work
    effects = it.ask(release(3, 1, rollback=True))
    assert not [effect for effect in effects if isinstance(effect, Undo)]
    assert works(effects) == []
    assert works(it.tell(Did(falling, Installed(Health())))) == [Install("l", 1, goods(1), known=True)]
    assert reports(installed(it, Health())) == [(3, 1, "serving")]


def test_a_release_that_stayed_because_a_newer_one_failed_can_fall_too() -> None:
    it = serving(1)
    for serial, version in ((2, 2), (3, 3)):
        it.ask(release(serial, version))
        arrive(it, version)
        it.tell(Did(it.work, Installed(FINE)) if version == 2 else DidNot(it.work, "failed", "bad"))
    assert (served(it), line(it).state) == (2, "failed")
    effects = it.tell(failing(2))
    assert reports(effects) == [(3, 1, "fell-back")]
    assert works(effects) == [Install("l", 1, goods(1), known=True)]


def test_what_was_fallen_back_to_is_not_given_up_too() -> None:
    it, _ = fallen()
    installed(it, Health())
    effects = it.tell(failing(1))
    assert works(effects) == []
    assert served(it) == 1


def test_a_fall_that_does_not_succeed_is_said() -> None:
    it, _ = fallen()
    (said,) = it.tell(DidNot(it.work, "failed", "it is damaged"))
    assert "not served again: it is damaged" in said.text


def test_the_use_of_another_version_or_an_unknown_line_is_old_news() -> None:
    it = serving(2)
    assert it.tell(Told(Usage("l", 1, Health(errors=5), "bad"))) == []
    assert it.tell(Told(Usage("other", 2, Health(errors=5)))) == []
    assert bench().tell(Told(Usage("l", 1, Health()))) == []


def test_use_is_reported_beside_what_the_trial_found() -> None:
    it = serving(1)
    use = Health(predictions=70, live=Pace(5, 6), live_before=Pace(3, 4), live_drift=0.25, errors=2, mix=(0.5, 0.5))
    (report,) = sends(it.tell(Told(Usage("l", 1, use))))
    assert report.health == msgspec.structs.replace(use, rows=FINE.rows, pace=FINE.pace)
    assert sends(it.ask(release(1, 1))) == [report]
    it.ask(release(2, 2))
    arrive(it, 2)
    (report,) = sends(installed(it))
    assert report.health == FINE


@pytest.mark.parametrize("why", ["", "no such operator"])
def test_what_programs_report_of_a_version_before_its_installation_ends_counts(why) -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    assert it.tell(Told(Usage("l", 2, Health(errors=1), why))) == []
    told = sends(installed(it))
    if why:
        assert [(report.version, report.state, report.detail) for report in told] == [
            (2, "serving", ""),
            (1, "fell-back", why),
        ]
    else:
        assert told[-1].health == msgspec.structs.replace(FINE, errors=1)


def test_what_programs_report_of_a_version_whose_installation_fails_is_dropped() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    it.tell(Told(Usage("l", 2, Health(errors=1))))
    it.tell(DidNot(it.work, "failed", "bad"))
    it.ask(release(3, 2))
    arrive(it, 2)
    assert sends(installed(it))[-1].health == FINE


# --- fetching in vain


def test_goods_that_are_gone_are_asked_for_when_the_order_is_repeated() -> None:
    it = bench()
    it.ask(release(1, 1))
    assert it.tell(PullFailed(goods(1).graph.digest, "gone")) == []
    assert works(it.tell(Pulled(goods(1).card.digest))) == []
    assert it.agent.live() >= {goods(1).card.digest}
    effects = it.ask(release(1, 1))
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert works(arrive(it, 1)) == [Install("l", 1, goods(1))]


def test_a_full_disk_ends_it_and_what_was_served_stays() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    effects = it.tell(PullFailed(goods(2).graph.digest, "disk"))
    assert reports(effects) == [(2, 1, "failed")]
    assert sends(effects)[0].detail == "the disk is full"
    assert works(it.tell(Pulled(goods(2).card.digest))) == []


def test_an_order_repeated_while_it_is_fetched_asks_for_nothing_more() -> None:
    it = bench()
    it.ask(release(1, 1))
    effects = it.ask(release(1, 1))
    assert reports(effects) == [(1, 0, "fetching")]
    assert len(effects) == 1


def test_a_device_that_moved_reports_and_fetches_where_it_is_asked() -> None:
    it = bench()
    it.ask(release(1, 1))
    effects = it.ask(release(1, 1), sender=ELSEWHERE)
    assert {effect.source for effect in effects if isinstance(effect, Pull)} == {ELSEWHERE}
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [ELSEWHERE]
    arrive(it, 1)
    assert [effect.to for effect in installed(it) if isinstance(effect, Send)] == [ELSEWHERE]


def test_all_lines_are_reported_when_the_link_is_up() -> None:
    it = serving(1)
    it.ask(release(1, 2, line="m"))
    assert reports(it.tell(Linked())) == [(1, 1, "serving"), (1, 0, "fetching")]


# --- beside visits


def test_a_release_waits_for_the_visit_that_is_under_way() -> None:
    it = bench()
    it.take(visit())
    training = it.work
    it.ask(release(1, 1))
    assert works(arrive(it, 1)) == []
    assert reports(it.ask(release(1, 1))) == [(1, 0, "checking")]
    assert it.agent.live() >= {goods(1).graph.digest}
    effects = it.tell(Did(training, trained()))
    assert works(effects) == [Install("l", 1, goods(1))]


def test_a_visit_waits_for_the_release_that_is_tried_without_asking_to_be_woken_all_the_time() -> None:
    it = bench()
    it.ask(release(1, 1))
    arrive(it, 1)
    trial = it.work
    it.ask(visit())
    it.tell(Pulled(KIT.digest))
    assert works(it.tell(Pulled(MODEL.digest))) == []
    now = 0.0
    for _ in range(200):
        wake = it.agent.wake_at()
        if wake is None:
            break
        assert works(it.tell(Woke(), max(now, wake))) == []
        again = it.agent.wake_at()
        assert again is None or again > max(now, wake)
        now = max(now, wake)
    assert now > visit().lease
    (work,) = works(it.tell(Did(trial, Installed(FINE)), now))
    assert isinstance(work, Train)
    assert served(it) == 1


def test_two_releases_are_tried_one_after_the_other_and_a_visit_between_them() -> None:
    it = bench()
    it.ask(release(1, 1))
    it.ask(release(1, 2, line="m"))
    first = works(arrive(it, 1) + arrive(it, 2))
    assert first == [Install("l", 1, goods(1))]
    trial = it.work
    it.take(visit())
    effects = it.tell(Did(trial, Installed(FINE)))
    (work,) = works(effects)
    assert isinstance(work, Train)
    assert works(it.tell(Did(it.work, trained()))) == [Install("m", 2, goods(2))]


def test_going_back_does_not_wait_for_a_visit_nor_a_visit_for_it() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    it.take(visit())
    assert works(it.ask(release(3, 1, rollback=True))) == [Install("l", 1, goods(1), known=True)]
    other = serving(1)
    other.ask(release(2, 2))
    arrive(other, 2)
    installed(other)
    other.ask(release(3, 1, rollback=True))
    other.take(visit())
    assert other.work
    assert other.agent._releases.trying is False
    assert "release" not in other.work


def test_goods_that_a_visit_needs_too_come_for_both() -> None:
    it = bench()
    shared = Goods(Parcel(KIT.digest, KIT.size), goods(1).card)
    it.ask(Release(sign(Order("f", "l", 1, 1, shared), SIGNER), None, None))
    it.ask(visit())
    it.tell(Pulled(goods(1).card.digest))
    it.tell(Pulled(KIT.digest))
    (work,) = works(it.tell(Pulled(MODEL.digest)))
    assert isinstance(work, Train)
    assert works(it.tell(Did(it.work, trained()))) == [Install("l", 1, shared)]
    gone = bench()
    gone.ask(Release(sign(Order("f", "l", 1, 1, shared), SIGNER), None, None))
    gone.ask(visit())
    effects = gone.tell(PullFailed(KIT.digest, "disk"))
    assert reports(effects) == [(1, 0, "failed")]
    assert gone.agent.state.held == {}


# --- restarts


def test_after_a_restart_an_order_that_did_not_end_is_taken_up() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert works(arrive(it, 2)) == [Install("l", 2, goods(2))]
    assert reports(installed(it)) == [(2, 2, "serving")]


def test_after_a_restart_what_takes_no_fetching_is_done_at_once() -> None:
    it = serving(1)
    it.ask(release(2, 0, rollback=True))
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert works(effects) == [Withdraw("l")]
    assert reports(it.tell(Did(it.work, Withdrawn()))) == [(2, 0, "withdrawn")]


def test_after_a_restart_a_fall_is_completed() -> None:
    it, _ = fallen()
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert reports(it.tell(Linked())) == [(2, 1, "fell-back")]


def test_after_a_restart_the_order_back_is_not_taken_for_done_where_a_trial_may_have_ended_unheard() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)  # swapped in on the disk, and then the power fails
    it.note(it.reborn().start(0.0))
    assert works(it.ask(release(3, 1, rollback=True))) == [Install("l", 1, goods(1), known=True)]


def test_after_a_restart_what_ended_well_is_left_alone() -> None:
    it = serving(1)
    assert it.reborn().start(0.0) == []
    assert reports(it.tell(Linked())) == [(1, 1, "serving")]


class Device:
    """A device with a disk, whose power may fail before or after any of the things that it does."""

    def __init__(self) -> None:
        self.bench = bench()
        self.current = 0
        self.left = 0

    def play(self, events, power: int) -> bool:
        """Go through a story; the power fails once, after so many effects. Returns whether it did."""
        self.left = power
        for event in events:
            if not self._perform(self.bench.agent.handle(event, 0.0)):
                self.bench.reborn()
                self.left = 1 << 30
                self._perform(self.bench.agent.start(0.0))
                self._perform(self.bench.agent.handle(event, 0.0))
        return self.left > 1 << 20

    def _perform(self, effects) -> bool:
        pending = list(effects)
        while pending:
            effect = pending.pop(0)
            self.left -= 1
            if self.left == 0:
                return False
            match effect:
                case Append():
                    self.bench.records.append(msgspec.msgpack.encode(effect.record))
                case Pull():
                    pending += self.bench.agent.handle(Pulled(effect.ref.digest), 0.0)
                case Do():
                    pending += self._install(effect)
        return True

    def _install(self, effect: Do) -> list[Effect]:
        if isinstance(effect.work, Withdraw):
            self.current = 0
            return self.bench.agent.handle(Did(effect.key, Withdrawn()), 0.0)
        if effect.work.version == 4:
            return self.bench.agent.handle(DidNot(effect.key, "failed", "it has no head"), 0.0)
        self.current = effect.work.version
        self.left -= 1
        if self.left == 0:
            self.left = 1  # the very next thing does not happen
        return self.bench.agent.handle(Did(effect.key, Installed(FINE)), 0.0)


def told(*messages) -> list[Event]:
    return [Received(EDGE, EPOCH, message) if isinstance(message, Release) else message for message in messages]


STORIES = [
    told(release(1, 1), release(2, 2), release(3, 1, rollback=True)),
    told(release(1, 1), release(2, 2), failing(2), release(3, 1, rollback=True)),
    told(release(1, 1), release(2, 4), release(3, 1, rollback=True)),
    told(release(1, 1), release(2, 0, rollback=True), release(3, 3)),
    told(release(1, 1), release(2, 2), failing(2), release(3, 4), release(4, 3)),
    told(release(1, 1), release(2, 3), release(3, 2), release(4, 1, rollback=True)),
    told(release(1, 2), failing(2), release(2, 0, rollback=True), release(3, 3)),
]


@pytest.mark.parametrize("story", STORIES)
def test_power_lost_anywhere_changes_neither_what_is_served_nor_what_is_said(story) -> None:
    whole = Device()
    whole.play(story, 1 << 20)
    cuts = 0
    for power in range(1, 200):
        device = Device()
        if not device.play(story, power):
            break
        cuts += 1
        assert line(device.bench).order == line(whole.bench).order
        assert line(device.bench).state == line(whole.bench).state, power
        assert served(device.bench) == served(whole.bench) == device.current == whole.current, power
        serials = [r.order.serial for r in records_of(device.bench) if isinstance(r, ReleaseOrdered)]
        assert serials == sorted(set(serials))
    assert cuts > 10


def records_of(it: Bench) -> list[Any]:
    return [msgspec.msgpack.decode(record, type=it.agent.record_form) for record in it.records]


# --- anything, in any order


class Disk(ServingBench):
    """A device whose work is done by hand, in any order, on a disk that outlives its agent."""

    def __init__(self) -> None:
        super().__init__(SIGNER.public)
        self.current = 0
        self.under_way: dict[str, object] = {}

    def note(self, effects) -> None:
        super().note(effects)
        for effect in effects:
            if isinstance(effect, Undo):
                self.under_way.pop(effect.key, None)
            elif isinstance(effect, Do):
                assert effect.key not in self.under_way
                self.under_way[effect.key] = effect.work
        tries = [work for work in self.under_way.values() if isinstance(work, Install) and not work.known]
        trains = [work for work in self.under_way.values() if isinstance(work, Train)]
        assert len(tries) + len(trains) <= 1, "a trial and training at once"
        assert len([work for work in self.under_way.values() if isinstance(work, Install | Withdraw)]) <= 1

    def restart(self) -> None:
        self.under_way.clear()
        self.note(self.reborn().start(0.0))

    def end(self, key: str, *, well: bool, heard: bool = True) -> None:
        """A piece of work is done, and perhaps the power fails before it is heard."""
        work = self.under_way.pop(key)
        said: Did | DidNot = DidNot(key, "failed", "bad")
        if isinstance(work, Train):
            said = Did(key, trained())
        elif isinstance(work, Withdraw):
            self.current, said = 0, Did(key, Withdrawn())
        elif isinstance(work, Install) and (well or work.known):
            self.current, said = work.version, Did(key, Installed(FINE))
        if heard:
            self.tell(said)
        else:
            self.restart()

    def settle(self) -> None:
        """Let all that is under way end well."""
        for _ in range(100):
            wanted = self.agent.state.lines.get("l")
            if wanted and wanted.order.goods:
                for parcel in (wanted.order.goods.graph, wanted.order.goods.card):
                    self.tell(Pulled(parcel.digest))
            for digest in (KIT.digest, MODEL.digest):
                self.tell(Pulled(digest))
            if not self.under_way:
                return
            self.end(next(iter(self.under_way)), well=True)
        raise AssertionError("it does not come to an end")


def happen(it: Disk, draw: random.Random, serial: int, now: float) -> int:
    """One thing happens; returns the newest serial number."""
    version = draw.randint(1, 4)
    match draw.randrange(10):
        case 0 | 1:
            serial = max(1, serial + draw.choice([0, 1, 1]))
            it.ask(release(serial, draw.randint(0, 4), rollback=draw.random() < 0.6), now)
        case 2 | 3:
            it.tell(Pulled(draw.choice([goods(version).graph, goods(version).card]).digest), now)
        case 4:
            it.tell(PullFailed(goods(version).graph.digest, draw.choice(["gone", "disk"])), now)
        case 5 | 6 if it.under_way:
            it.end(draw.choice(sorted(it.under_way)), well=draw.random() < 0.7, heard=draw.random() < 0.8)
        case 7:
            it.take(visit(round_=1 + int(now)), now)
        case 8:
            it.tell(Told(Usage("l", version, Health(), draw.choice(["", "bad"]))), now)
        case 9 if draw.random() < 0.3:
            it.restart()
    return serial


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_the_disk_is_what_the_device_says(seed) -> None:
    draw = random.Random(seed)
    it = Disk()
    serial = 0
    for number in range(60):
        now = float(number)
        serial = happen(it, draw, serial, now)
        if (wake := it.agent.wake_at()) is not None and wake <= now:
            it.tell(Woke(), now)
            again = it.agent.wake_at()
            assert again is None or again > now
    assert serial
    it.ask(release(serial, 1))  # asked again: what came to a halt goes on
    it.settle()
    assert served(it) == it.current
    orders = [record.order.serial for record in records_of(it) if isinstance(record, ReleaseOrdered)]
    assert orders == sorted(set(orders))
