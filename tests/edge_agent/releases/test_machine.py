"""Releases on a device: which orders are performed, what is fetched, tried and served, and restarts."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from edge_agent.records import ReleaseEnded, ReleaseOrdered, ServedRelease
from edge_agent.releases.machine import MAX_LINES
from edge_agent.releases.orders import Install, Installed, Usage, Withdraw, Withdrawn
from edge_agent.training.messages import Train
from sojourn.node.machine import (
    Append,
    CancelWork,
    Effect,
    Event,
    LinkUp,
    LocalEvent,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    StartWork,
    TimerFired,
    WorkDone,
    WorkFailed,
)
from sojourn.protocol.release import BlobRef, Goods, Health, Order, Pace, SignedOrder, sign
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


def test_order_is_stored_before_replies_and_fetching() -> None:
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


def test_release_is_tried_once_fetched_and_then_served() -> None:
    it = bench()
    it.ask(release(1, 1))
    assert works(it.handle(Pulled(goods(1).card.digest))) == []
    assert works(it.handle(Pulled(goods(1).graph.digest))) == [Install("l", 1, goods(1))]
    assert reports(it.ask(release(1, 1))) == [(1, 0, "checking")]
    effects = installed(it)
    (appended,) = [effect for effect in effects if isinstance(effect, Append)]
    assert appended.sync
    assert appended.record == ReleaseEnded("l", "serving", "", FINE)
    assert sends(effects) == [ReleaseReport("l", 1, 1, "serving", "", FINE)]
    assert served(it) == 1
    assert not it.agent.live() & {goods(1).graph.digest, goods(1).card.digest}


def test_shared_blob_of_graph_and_card_is_fetched_once() -> None:
    it = bench()
    parcel = goods(1).graph
    signed = sign(Order("f", "l", 1, 1, Goods(parcel, parcel)), SIGNER)
    pulls = [effect for effect in it.ask(Release(signed, None, None)) if isinstance(effect, Pull)]
    assert len(pulls) == 1
    assert works(it.handle(Pulled(parcel.digest))) == [Install("l", 1, Goods(parcel, parcel))]


def test_repeated_order_is_answered_but_not_executed_again() -> None:
    it = serving()
    for serial in (1, 1):
        effects = it.ask(release(serial, 1))
        assert reports(effects) == [(1, 1, "serving")]
        assert len(effects) == 1


def test_failed_trial_keeps_the_served_release() -> None:
    it = serving()
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.handle(WorkFailed(it.work, "failed", "x" * 5000))
    (report,) = sends(effects)
    assert (report.serial, report.version, report.state, len(report.detail)) == (2, 1, "failed", 2000)
    assert works(effects) == []
    assert served(it) == 1
    assert reports(it.ask(release(2, 2))) == [(2, 1, "failed")]


def test_newer_version_keeps_the_older_one_as_previous() -> None:
    it = serving()
    it.ask(release(3, 2))
    assert served(it) == 1
    arrive(it, 2)
    installed(it)
    assert (line(it).serving, line(it).previous) == (ServedRelease(2, goods(2)), ServedRelease(1, goods(1)))


# --- refused orders


@pytest.mark.parametrize(
    ("key", "message", "why"),
    [
        ("", release(5, 2), "no release key"),
        (None, release(5, 2, OTHER), "not signed with the fleet's release key"),
        (None, release(5, 2, fleet="g"), "for the fleet 'g'"),
    ],
)
def test_order_for_others_or_by_untrusted_key_is_refused(key, message, why) -> None:
    it = bench(key)
    effects = it.ask(message)
    (report,) = sends(effects)
    assert (report.serial, report.version, report.state) == (5, 0, "refused")
    assert why in report.detail
    assert it.records == []
    assert it.agent.state.lines == {}


def test_refusal_reports_the_served_version() -> None:
    it = serving(3)
    assert reports(it.ask(release(9, 4, OTHER))) == [(9, 3, "refused")]
    assert line(it).order.serial == 1


def test_altered_order_is_refused_and_unreadable_one_ignored() -> None:
    it = bench()
    signed = sign(order(1, 1), SIGNER)
    other = SignedOrder(sign(order(1, 2), SIGNER).order, signed.signature)
    assert reports(it.ask(Release(other, None, None))) == [(1, 0, "refused")]
    for rubbish in (b"", b"rubbish", signed.order.replace(b"l", b"\xff"), signed.order + b"\x00"):
        assert sends(it.ask(Release(SignedOrder(rubbish, signed.signature), None, None))) == []
    assert it.records == []


def test_older_serial_is_answered_with_the_current_state() -> None:
    it = serving(2, serial=4)
    effects = it.ask(release(3, 9))
    assert reports(effects) == [(4, 2, "serving")]
    assert len(effects) == 1


def test_older_version_requires_a_rollback() -> None:
    it = serving(2)
    effects = it.ask(release(2, 1))
    assert reports(effects) == [(2, 2, "refused")]
    assert works(effects) == []
    effects = it.ask(release(3, 1, rollback=True))
    assert reports(effects) == [(3, 2, "fetching")]
    arrive(it, 1)
    installed(it)
    assert served(it) == 1


def test_serving_nothing_requires_a_rollback() -> None:
    it = serving(2)
    assert reports(it.ask(release(2, 0))) == [(2, 2, "refused")]
    effects = it.ask(release(3, 0, rollback=True))
    assert works(effects) == [Withdraw("l")]
    assert reports(it.handle(WorkDone(it.work, Withdrawn()))) == [(3, 0, "withdrawn")]
    assert served(it) == 0


def test_order_beyond_the_line_limit_is_refused() -> None:
    it = bench()
    for number in range(MAX_LINES):
        it.ask(release(1, 1, line=f"line-{number}"))
    assert len(it.agent.state.lines) == MAX_LINES == 16
    effects = it.ask(release(1, 1, line="one-more"))
    assert reports(effects) == [(1, 0, "refused")]
    assert "already serves 16 model lines" in sends(effects)[0].detail
    assert reports(it.ask(release(2, 2, line="line-3"))) == [(2, 0, "fetching")]


# --- rollbacks


def test_rollback_needs_no_trial_and_no_fetching() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    effects = it.ask(release(3, 1, rollback=True))
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert not [effect for effect in effects if isinstance(effect, Pull)]
    assert reports(installed(it, Health())) == [(3, 1, "serving")]
    assert (line(it).serving, line(it).previous) == (ServedRelease(1, goods(1)), ServedRelease(2, goods(2)))


def test_damaged_previous_release_is_fetched_again() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    it.ask(release(3, 1, rollback=True))
    effects = it.handle(WorkFailed(it.work, "failed", "the graph is not here"))
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert line(it).state == "fetching"
    assert works(arrive(it, 1)) == [Install("l", 1, goods(1))]
    assert reports(installed(it)) == [(3, 1, "serving")]


def test_release_already_served_is_reported_at_once() -> None:
    it = serving(1)
    effects = it.ask(release(2, 1))
    assert len([effect for effect in effects if isinstance(effect, Append)]) == 2
    assert works(effects) == []
    assert sends(effects) == [ReleaseReport("l", 2, 1, "serving", "", FINE)]


def test_same_files_are_served_under_a_new_version() -> None:
    it = serving(1)
    parcel = goods(1)
    effects = it.ask(Release(sign(Order("f", "l", 2, 5, parcel), SIGNER), None, None))
    assert [effect.ref.digest for effect in effects if isinstance(effect, Pull)] == [
        parcel.graph.digest,
        parcel.card.digest,
    ]
    assert works(arrive(it, 1)) == [Install("l", 5, parcel)]
    assert reports(installed(it)) == [(2, 5, "serving")]


def test_withdrawn_release_returns_without_a_trial() -> None:
    it = serving(1)
    it.ask(release(2, 0, rollback=True))
    it.handle(WorkDone(it.work, Withdrawn()))
    assert works(it.ask(release(3, 1))) == [Install("l", 1, goods(1), known=True)]


# --- superseded


def test_newer_order_while_fetching_fetches_the_newer_files() -> None:
    it = bench()
    it.ask(release(1, 1))
    it.handle(Pulled(goods(1).graph.digest))
    it.ask(release(2, 2))
    assert works(it.handle(Pulled(goods(1).card.digest))) == []
    assert works(arrive(it, 2)) == [Install("l", 2, goods(2))]
    assert not it.agent.live() & {goods(1).graph.digest}


def test_newer_order_cancels_the_trial_and_ignores_its_result() -> None:
    it = bench()
    it.ask(release(1, 1))
    arrive(it, 1)
    old = it.work
    effects = it.ask(release(2, 2))
    assert [effect for effect in effects if isinstance(effect, CancelWork)] == [CancelWork(old)]
    assert it.agent._releases.trying is False
    arrive(it, 2)
    assert it.work != old
    it.handle(WorkDone(old, Installed(FINE)))
    assert line(it).state == "fetching"
    assert reports(installed(it)) == [(2, 2, "serving")]


def test_rollback_during_a_trial_reinstalls_the_served_release() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.ask(release(3, 1, rollback=True))
    # The trial may have installed version 2 just before it was cancelled.
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert line(it).state == "fetching"
    effects = installed(it, Health())
    assert sends(effects) == [ReleaseReport("l", 3, 1, "serving", "", FINE)]
    assert line(it).unsure is False


def test_refusal_during_a_trial_reinstalls_the_served_release() -> None:
    it = serving(3)
    it.ask(release(2, 4))
    arrive(it, 4)
    effects = it.ask(release(3, 2))
    assert reports(effects) == [(3, 3, "refused")]
    assert works(effects) == [Install("l", 3, goods(3), known=True)]
    effects = installed(it, Health())
    assert effects == []
    assert line(it).state == "refused"


def test_next_order_waits_for_an_unfinished_rollback() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    it.ask(release(3, 1, rollback=True))
    back = it.work
    it.ask(release(4, 3))
    assert works(arrive(it, 3)) == []
    effects = it.handle(WorkDone(back, Installed(Health())))
    assert reports(effects) == []
    assert works(effects) == [Install("l", 3, goods(3))]
    assert served(it) == 2
    assert reports(installed(it)) == [(4, 3, "serving")]


# --- programs that cannot load a release


def failing(version=2, why="no such operator") -> LocalEvent:
    return LocalEvent(Usage("l", version, Health(), why))


def fallen() -> tuple[ServingBench, list[Any]]:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    installed(it)
    return it, it.handle(failing())


def test_unloadable_release_falls_back_to_the_previous_one() -> None:
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
    assert it.handle(failing()) == []


def test_unloadable_first_release_is_withdrawn() -> None:
    it = serving(1)
    effects = it.handle(failing(1))
    assert reports(effects) == [(1, 0, "fell-back")]
    assert works(effects) == [Withdraw("l")]
    assert it.handle(WorkDone(it.work, Withdrawn())) == []


def test_rollback_during_a_fallback_reinstalls_the_release() -> None:
    it, _ = fallen()
    falling = it.work
    effects = it.ask(release(3, 1, rollback=True))
    assert not [effect for effect in effects if isinstance(effect, CancelWork)]
    assert works(effects) == []
    assert works(it.handle(WorkDone(falling, Installed(Health())))) == [Install("l", 1, goods(1), known=True)]
    assert reports(installed(it, Health())) == [(3, 1, "serving")]


def test_release_kept_after_a_failed_successor_can_fall_back() -> None:
    it = serving(1)
    for serial, version in ((2, 2), (3, 3)):
        it.ask(release(serial, version))
        arrive(it, version)
        it.handle(WorkDone(it.work, Installed(FINE)) if version == 2 else WorkFailed(it.work, "failed", "bad"))
    assert (served(it), line(it).state) == (2, "failed")
    effects = it.handle(failing(2))
    assert reports(effects) == [(3, 1, "fell-back")]
    assert works(effects) == [Install("l", 1, goods(1), known=True)]


def test_fallback_release_is_not_dropped_on_failure() -> None:
    it, _ = fallen()
    installed(it, Health())
    effects = it.handle(failing(1))
    assert works(effects) == []
    assert served(it) == 1


def test_failed_fallback_is_logged() -> None:
    it, _ = fallen()
    (warning,) = it.handle(WorkFailed(it.work, "failed", "it is damaged"))
    assert "could not be restored: it is damaged" in warning.text


def test_usage_of_other_version_or_unknown_line_is_ignored() -> None:
    it = serving(2)
    assert it.handle(LocalEvent(Usage("l", 1, Health(errors=5), "bad"))) == []
    assert it.handle(LocalEvent(Usage("other", 2, Health(errors=5)))) == []
    assert bench().handle(LocalEvent(Usage("l", 1, Health()))) == []


def test_usage_is_reported_together_with_trial_results() -> None:
    it = serving(1)
    use = Health(predictions=70, live=Pace(5, 6), live_before=Pace(3, 4), live_drift=0.25, errors=2, mix=(0.5, 0.5))
    (report,) = sends(it.handle(LocalEvent(Usage("l", 1, use))))
    assert report.health == msgspec.structs.replace(use, rows=FINE.rows, pace=FINE.pace)
    assert sends(it.ask(release(1, 1))) == [report]
    it.ask(release(2, 2))
    arrive(it, 2)
    (report,) = sends(installed(it))
    assert report.health == FINE


@pytest.mark.parametrize("why", ["", "no such operator"])
def test_usage_during_installation_counts_afterwards(why) -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    assert it.handle(LocalEvent(Usage("l", 2, Health(errors=1), why))) == []
    sent = sends(installed(it))
    if why:
        assert [(report.version, report.state, report.detail) for report in sent] == [
            (2, "serving", ""),
            (1, "fell-back", why),
        ]
    else:
        assert sent[-1].health == msgspec.structs.replace(FINE, errors=1)


def test_usage_of_a_failed_installation_is_dropped() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    it.handle(LocalEvent(Usage("l", 2, Health(errors=1))))
    it.handle(WorkFailed(it.work, "failed", "bad"))
    it.ask(release(3, 2))
    arrive(it, 2)
    assert sends(installed(it))[-1].health == FINE


# --- failed fetches


def test_missing_blobs_are_requested_when_the_order_repeats() -> None:
    it = bench()
    it.ask(release(1, 1))
    assert it.handle(PullFailed(goods(1).graph.digest, "gone")) == []
    assert works(it.handle(Pulled(goods(1).card.digest))) == []
    assert it.agent.live() >= {goods(1).card.digest}
    effects = it.ask(release(1, 1))
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert works(arrive(it, 1)) == [Install("l", 1, goods(1))]


def test_full_disk_fails_the_order_and_keeps_served_release() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    effects = it.handle(PullFailed(goods(2).graph.digest, "disk"))
    assert reports(effects) == [(2, 1, "failed")]
    assert sends(effects)[0].detail == "the disk is full"
    assert works(it.handle(Pulled(goods(2).card.digest))) == []


def test_repeated_order_while_fetching_requests_nothing_more() -> None:
    it = bench()
    it.ask(release(1, 1))
    effects = it.ask(release(1, 1))
    assert reports(effects) == [(1, 0, "fetching")]
    assert len(effects) == 1


def test_moved_device_reports_to_and_fetches_from_the_new_edge() -> None:
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
    assert reports(it.handle(LinkUp())) == [(1, 1, "serving"), (1, 0, "fetching")]


# --- releases during visits


def test_release_waits_for_the_current_visit() -> None:
    it = bench()
    it.take(visit())
    training = it.work
    it.ask(release(1, 1))
    assert works(arrive(it, 1)) == []
    assert reports(it.ask(release(1, 1))) == [(1, 0, "checking")]
    assert it.agent.live() >= {goods(1).graph.digest}
    effects = it.handle(WorkDone(training, trained()))
    assert works(effects) == [Install("l", 1, goods(1))]


def test_visit_waits_for_the_trial_without_busy_wakeups() -> None:
    it = bench()
    it.ask(release(1, 1))
    arrive(it, 1)
    trial = it.work
    it.ask(visit())
    it.handle(Pulled(KIT.digest))
    assert works(it.handle(Pulled(MODEL.digest))) == []
    now = 0.0
    for _ in range(200):
        wake = it.agent.wake_at()
        if wake is None:
            break
        assert works(it.handle(TimerFired(), max(now, wake))) == []
        again = it.agent.wake_at()
        assert again is None or again > max(now, wake)
        now = max(now, wake)
    assert now > visit().lease
    (work,) = works(it.handle(WorkDone(trial, Installed(FINE)), now))
    assert isinstance(work, Train)
    assert served(it) == 1


def test_trials_run_one_at_a_time_with_a_visit_in_between() -> None:
    it = bench()
    it.ask(release(1, 1))
    it.ask(release(1, 2, line="m"))
    first = works(arrive(it, 1) + arrive(it, 2))
    assert first == [Install("l", 1, goods(1))]
    trial = it.work
    it.take(visit())
    effects = it.handle(WorkDone(trial, Installed(FINE)))
    (work,) = works(effects)
    assert isinstance(work, Train)
    assert works(it.handle(WorkDone(it.work, trained()))) == [Install("m", 2, goods(2))]


def test_rollback_and_visit_do_not_wait_for_each_other() -> None:
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


def test_blob_needed_by_visit_and_release_serves_both() -> None:
    it = bench()
    shared = Goods(BlobRef(KIT.digest, KIT.size), goods(1).card)
    it.ask(Release(sign(Order("f", "l", 1, 1, shared), SIGNER), None, None))
    it.ask(visit())
    it.handle(Pulled(goods(1).card.digest))
    it.handle(Pulled(KIT.digest))
    (work,) = works(it.handle(Pulled(MODEL.digest)))
    assert isinstance(work, Train)
    assert works(it.handle(WorkDone(it.work, trained()))) == [Install("l", 1, shared)]
    gone = bench()
    gone.ask(Release(sign(Order("f", "l", 1, 1, shared), SIGNER), None, None))
    gone.ask(visit())
    effects = gone.handle(PullFailed(KIT.digest, "disk"))
    assert reports(effects) == [(1, 0, "failed")]
    assert gone.agent.state.held == {}


# --- restarts


def test_restart_resumes_an_unfinished_order() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert len([effect for effect in effects if isinstance(effect, Pull)]) == 2
    assert works(arrive(it, 2)) == [Install("l", 2, goods(2))]
    assert reports(installed(it)) == [(2, 2, "serving")]


def test_restart_completes_a_withdrawal_at_once() -> None:
    it = serving(1)
    it.ask(release(2, 0, rollback=True))
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert works(effects) == [Withdraw("l")]
    assert reports(it.handle(WorkDone(it.work, Withdrawn()))) == [(2, 0, "withdrawn")]


def test_restart_completes_a_fallback() -> None:
    it, _ = fallen()
    effects = it.reborn().start(0.0)
    it.note(effects)
    assert works(effects) == [Install("l", 1, goods(1), known=True)]
    assert reports(it.handle(LinkUp())) == [(2, 1, "fell-back")]


def test_rollback_after_restart_reinstalls_if_trial_may_be_done() -> None:
    it = serving(1)
    it.ask(release(2, 2))
    arrive(it, 2)  # installed on the disk, and then the power fails
    it.note(it.reborn().start(0.0))
    assert works(it.ask(release(3, 1, rollback=True))) == [Install("l", 1, goods(1), known=True)]


def test_restart_leaves_a_finished_order_alone() -> None:
    it = serving(1)
    assert it.reborn().start(0.0) == []
    assert reports(it.handle(LinkUp())) == [(1, 1, "serving")]


class Device:
    """A device with a disk, whose power may fail before or after each of its effects."""

    def __init__(self) -> None:
        self.bench = bench()
        self.current = 0
        self.left = 0

    def play(self, events, power: int) -> bool:
        """Play a story with a power cut after this many effects; return whether it happened."""
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
                case StartWork():
                    pending += self._install(effect)
        return True

    def _install(self, effect: StartWork) -> list[Effect]:
        if isinstance(effect.work, Withdraw):
            self.current = 0
            return self.bench.agent.handle(WorkDone(effect.key, Withdrawn()), 0.0)
        if effect.work.version == 4:
            return self.bench.agent.handle(WorkFailed(effect.key, "failed", "it has no head"), 0.0)
        self.current = effect.work.version
        self.left -= 1
        if self.left == 0:
            self.left = 1  # the power fails before the next effect
        return self.bench.agent.handle(WorkDone(effect.key, Installed(FINE)), 0.0)


def orders(*messages) -> list[Event]:
    return [Received(EDGE, EPOCH, message) if isinstance(message, Release) else message for message in messages]


STORIES = [
    orders(release(1, 1), release(2, 2), release(3, 1, rollback=True)),
    orders(release(1, 1), release(2, 2), failing(2), release(3, 1, rollback=True)),
    orders(release(1, 1), release(2, 4), release(3, 1, rollback=True)),
    orders(release(1, 1), release(2, 0, rollback=True), release(3, 3)),
    orders(release(1, 1), release(2, 2), failing(2), release(3, 4), release(4, 3)),
    orders(release(1, 1), release(2, 3), release(3, 2), release(4, 1, rollback=True)),
    orders(release(1, 2), failing(2), release(2, 0, rollback=True), release(3, 3)),
]


@pytest.mark.parametrize("story", STORIES)
def test_power_loss_at_any_point_keeps_served_and_reported_state(story) -> None:
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


# --- random events


class Disk(ServingBench):
    """A device whose work the test completes in any order, on a disk that survives restarts."""

    def __init__(self) -> None:
        super().__init__(SIGNER.public)
        self.current = 0
        self.under_way: dict[str, object] = {}

    def note(self, effects) -> None:
        super().note(effects)
        for effect in effects:
            if isinstance(effect, CancelWork):
                self.under_way.pop(effect.key, None)
            elif isinstance(effect, StartWork):
                assert effect.key not in self.under_way
                self.under_way[effect.key] = effect.work
        tries = [work for work in self.under_way.values() if isinstance(work, Install) and not work.known]
        trains = [work for work in self.under_way.values() if isinstance(work, Train)]
        assert len(tries) + len(trains) <= 1, "a trial and training at once"
        assert len([work for work in self.under_way.values() if isinstance(work, Install | Withdraw)]) <= 1

    def restart(self) -> None:
        self.under_way.clear()
        self.note(self.reborn().start(0.0))

    def end(self, key: str, *, well: bool, received: bool = True) -> None:
        """Complete a work item; the power may fail before the agent learns of it."""
        work = self.under_way.pop(key)
        event: WorkDone | WorkFailed = WorkFailed(key, "failed", "bad")
        if isinstance(work, Train):
            event = WorkDone(key, trained())
        elif isinstance(work, Withdraw):
            self.current, event = 0, WorkDone(key, Withdrawn())
        elif isinstance(work, Install) and (well or work.known):
            self.current, event = work.version, WorkDone(key, Installed(FINE))
        if received:
            self.handle(event)
        else:
            self.restart()

    def settle(self) -> None:
        """Complete all active work successfully."""
        for _ in range(100):
            wanted = self.agent.state.lines.get("l")
            if wanted and wanted.order.goods:
                for parcel in (wanted.order.goods.graph, wanted.order.goods.card):
                    self.handle(Pulled(parcel.digest))
            for digest in (KIT.digest, MODEL.digest):
                self.handle(Pulled(digest))
            if not self.under_way:
                return
            self.end(next(iter(self.under_way)), well=True)
        raise AssertionError("it does not come to an end")


def happen(it: Disk, draw: random.Random, serial: int, now: float) -> int:
    """Play one random event; return the newest serial number."""
    version = draw.randint(1, 4)
    match draw.randrange(10):
        case 0 | 1:
            serial = max(1, serial + draw.choice([0, 1, 1]))
            it.ask(release(serial, draw.randint(0, 4), rollback=draw.random() < 0.6), now)
        case 2 | 3:
            it.handle(Pulled(draw.choice([goods(version).graph, goods(version).card]).digest), now)
        case 4:
            it.handle(PullFailed(goods(version).graph.digest, draw.choice(["gone", "disk"])), now)
        case 5 | 6 if it.under_way:
            it.end(draw.choice(sorted(it.under_way)), well=draw.random() < 0.7, received=draw.random() < 0.8)
        case 7:
            it.take(visit(round_=1 + int(now)), now)
        case 8:
            it.handle(LocalEvent(Usage("l", version, Health(), draw.choice(["", "bad"]))), now)
        case 9 if draw.random() < 0.3:
            it.restart()
    return serial


@pytest.mark.parametrize("seed", range(150))
def test_random_events_keep_disk_and_reported_state_equal(seed) -> None:
    draw = random.Random(seed)
    it = Disk()
    serial = 0
    for number in range(60):
        now = float(number)
        serial = happen(it, draw, serial, now)
        if (wake := it.agent.wake_at()) is not None and wake <= now:
            it.handle(TimerFired(), now)
            again = it.agent.wake_at()
            assert again is None or again > now
    assert serial
    it.ask(release(serial, 1))  # repeated: a stopped order resumes
    it.settle()
    assert served(it) == it.current
    serials = [record.order.serial for record in records_of(it) if isinstance(record, ReleaseOrdered)]
    assert serials == sorted(set(serials))
