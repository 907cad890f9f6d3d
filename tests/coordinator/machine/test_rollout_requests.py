"""Answers to operators about releases: which rollouts start, steering in each state, and races."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.machine.rollout_requests import MAX_LINES
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.node.machine import Append, Pull, Pulled, PullFailed
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.release import HealthRules, Order, SignedOrder, sign
from sojourn.protocol.release_messages import Releases, Rollout, Steer
from sojourn.protocol.topics import Address
from tests.coordinator.machine.cloud_bench import BOOT, OPERATOR
from tests.coordinator.machine.rollout_bench import RULES, SIGNER, RolloutBench, goods, refs, rollout
from tests.coordinator.machine.test_rollouts import STATES, TEN, bench
from tests.sojourn.store.replays import sends

OTHER = Address("cloud", "operator")
"""Another person with the same name: tickets distinguish them."""


def pulls(effects) -> list[bytes]:
    return [effect.ref.digest for effect in effects if isinstance(effect, Pull)]


def refusal(effects) -> str:
    (message,) = sends(effects)
    assert isinstance(message, Refused)
    return message.reason


def answer(effects) -> Releases:
    (message,) = [message for message in sends(effects) if isinstance(message, Releases)]
    return message


# --- beginning


def test_rollout_starts_once_its_files_are_on_disk() -> None:
    it = bench()
    effects = it.receive(OPERATOR, rollout())
    assert pulls(effects) == [ref.digest for ref in refs(1)]
    assert it.cloud.state.lines == {}
    assert it.cloud.live() >= {ref.digest for ref in refs(1)}
    assert it.handle(Pulled(refs(1)[1].digest)) == []
    effects = it.handle(Pulled(refs(1)[0].digest))
    first = effects[0]
    assert isinstance(first, Append)
    assert (first.sync, first.blobs) == (True, tuple(ref.digest for ref in refs(1)))
    view = answer(effects).lines[0]
    assert (view.line, view.status, view.version, view.before, view.serial) == ("l", "running", 1, 0, 2)
    assert it.cloud.live() >= {ref.digest for ref in refs(1)}


def test_repeated_request_fetches_missing_files_then_is_answered() -> None:
    it = bench()
    it.receive(OPERATOR, rollout())
    it.handle(Pulled(refs(1)[0].digest))
    assert pulls(it.receive(OPERATOR, rollout())) == [refs(1)[1].digest]
    it.handle(Pulled(refs(1)[1].digest))
    before = len(it.records)
    assert answer(it.receive(OPERATOR, rollout())).lines[0].status == "running"
    it.through()
    assert answer(it.receive(OPERATOR, rollout())).lines[0].status == "done"
    assert [kind for kind in it.records[before:] if b"rollout-begun" in kind] == []


def test_unavailable_files_are_dropped_until_next_request() -> None:
    it = bench()
    it.receive(OPERATOR, rollout())
    it.handle(PullFailed(refs(1)[0].digest, "gone"))
    assert it.handle(Pulled(refs(1)[1].digest)) == []
    assert not it.cloud.live() & {ref.digest for ref in refs(1)}
    assert pulls(it.receive(OPERATOR, rollout())) == [ref.digest for ref in refs(1)]


def changed(which="forward", **changes) -> Rollout:
    """Return a first rollout with one of its orders signed by another key."""
    plain = rollout()
    order = msgspec.structs.replace(getattr(plain, which).read(), **changes)
    return msgspec.structs.replace(plain, **{which: sign(order, SIGNER)})


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (msgspec.structs.replace(rollout(), forward=SignedOrder(b"no", bytes(64))), "cannot be read"),
        (msgspec.structs.replace(rollout(), back=SignedOrder(b"\x91\xa2\xff\xff", bytes(64))), "cannot be read"),
        (rollout(fleet="other"), "not both for one model line"),
        (changed(fleet="other"), "not both for one model line"),
        (changed("back", line="other"), "not both for one model line"),
        (changed(goods=None), "not for the release"),
        (changed(goods=goods(2)), "not for the release"),
        (msgspec.structs.replace(rollout(), card=refs(2)[1]), "not for the release"),
        (changed(version=0), "must be a rollback with a higher serial"),
        (changed("back", rollback=False), "must be a rollback with a higher serial"),
        (changed("back", serial=1), "must be a rollback with a higher serial"),
        (changed("back", goods=goods(2), version=2), "names a release"),
        (rollout(stages=(0.5, 0.5, 1.0)), "each stage must reach more"),
        (rollout(stages=(0.5, 0.25, 1.0)), "each stage must reach more"),
        (rollout(stages=(0.5,)), "the last stage must reach all"),
    ],
)
def test_rollout_that_contradicts_itself_is_refused(message, why) -> None:
    it = bench()
    assert why in refusal(it.receive(OPERATOR, message))
    assert it.of_releases() == []
    assert pulls(it.receive(OPERATOR, rollout(ticket="fine")))


def done() -> RolloutBench:
    it = bench()
    it.begin(stages=(1.0,))
    it.through()
    return it


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (rollout(2, before=1, serial=2, ticket="u"), "in the meantime"),
        (rollout(2, before=0, serial=3, ticket="u"), "in the meantime"),
        (rollout(3, before=2, serial=3, ticket="u"), "in the meantime"),
        (rollout(1, before=1, serial=3, ticket="u"), "needs a higher version"),
    ],
)
def test_rollout_that_does_not_follow_previous_one_is_refused(message, why) -> None:
    it = done()
    assert why in refusal(it.receive(OPERATOR, message))


def test_rollback_to_another_version_than_served_is_refused() -> None:
    it = done()
    plain = rollout(2, before=1, serial=3, ticket="u")
    back = sign(Order("sojourn", "l", 4, 7, goods(1), rollback=True), SIGNER)
    assert "in the meantime" in refusal(it.receive(OPERATOR, msgspec.structs.replace(plain, back=back)))


def test_undone_version_is_not_rolled_out_again() -> None:
    it = done()
    it.begin(2, before=1, serial=3, ticket="u")
    it.steer("rollback")
    for device in list(it.line().members):
        it.report(device, 4, 1)
    assert it.line().status == "rolled-back"
    assert "needs a higher version" in refusal(it.receive(OPERATOR, rollout(2, before=1, serial=5, ticket="v")))
    it.begin(3, before=1, serial=5, ticket="w")
    assert (it.line().forward.read.version, it.line().back.read.version) == (3, 1)
    assert (it.line().back.graph, it.line().back.card) == refs(1)


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("done", "rolled-back")])
def test_second_rollout_is_refused_while_first_is_active(state) -> None:
    it = bench()
    STATES[state](it)
    assert "let it end, or roll it back" in refusal(it.receive(OPERATOR, rollout(2, before=0, serial=3, ticket="u")))


@pytest.mark.parametrize(("state", "before"), [("done", 1), ("rolled-back", 0)])
def test_next_rollout_starts_after_previous_one_ends(state, before) -> None:
    it = bench()
    STATES[state](it)
    it.begin(2, before=before, serial=3, ticket="u")
    assert (it.line().status, it.line().forward.read.version) == ("running", 2)


def test_first_rollout_with_complete_files_wins() -> None:
    it = bench()
    it.receive(OPERATOR, rollout(1, ticket="one"))
    it.receive(OTHER, rollout(2, ticket="two"))
    for ref in refs(1):  # these are no longer needed
        assert it.handle(Pulled(ref.digest)) == []
    it.handle(Pulled(refs(2)[0].digest))
    it.handle(Pulled(refs(2)[1].digest))
    assert it.line().ticket == "two"
    assert "let it end" in refusal(it.receive(OPERATOR, rollout(1, ticket="one")))


def test_rollout_whose_files_arrive_too_late_is_refused() -> None:
    it = done()
    it.receive(OPERATOR, rollout(2, before=1, serial=3, ticket="u"))
    it.handle(Pulled(refs(2)[0].digest))
    it.steer("rollback")
    assert "is rolling-back" in refusal(it.handle(Pulled(refs(2)[1].digest)))
    assert it.line().forward.read.version == 1


def test_number_of_model_lines_is_limited() -> None:
    it = RolloutBench()
    for number in range(MAX_LINES):
        it.begin(line=f"line-{number}", ticket=f"t-{number}")
    assert "32 model lines already" in refusal(it.receive(OPERATOR, rollout(line="one-more", ticket="u")))
    it.steer("rollback", line="line-0")
    it.begin(2, serial=3, line="line-0", ticket="again")
    assert it.line("line-0").forward.read.version == 2


# --- steering

PAUSED, RESUMED, UNDONE = "paused", "running", "rolling-back"
TABLE = {
    ("running", "pause"): PAUSED, ("running", "resume"): RESUMED, ("running", "rollback"): UNDONE,
    ("soaking", "pause"): PAUSED, ("soaking", "resume"): RESUMED, ("soaking", "rollback"): UNDONE,
    ("paused", "pause"): PAUSED, ("paused", "resume"): RESUMED, ("paused", "rollback"): UNDONE,
    ("halted", "pause"): None, ("halted", "resume"): None, ("halted", "rollback"): UNDONE,
    ("rolling-back", "pause"): None, ("rolling-back", "resume"): None, ("rolling-back", "rollback"): UNDONE,
    ("rolled-back", "pause"): None, ("rolled-back", "resume"): None, ("rolled-back", "rollback"): "rolled-back",
    ("done", "pause"): None, ("done", "resume"): None, ("done", "rollback"): UNDONE,
}  # fmt: skip


@pytest.mark.parametrize(("state", "action"), TABLE)
def test_steering_follows_the_table_in_every_state(state, action) -> None:
    it = bench()
    STATES[state](it)
    before = it.line().status
    effects = it.steer(action)
    expected = TABLE[state, action]
    if expected is None:
        assert f"the rollout of l 1 is {before}: " in refusal(effects)
        assert it.line().status == before
        return
    assert it.line().status == expected
    assert answer(effects).lines[0].status == expected
    if expected in (PAUSED, UNDONE) and before != expected:
        assert it.line().detail == f"{action} by operator"
    records = len(it.records)
    assert answer(it.steer(action)).lines[0].status == expected
    assert len(it.records) == records


def test_steering_table_covers_every_state_and_action() -> None:
    assert set(TABLE) == {(state, action) for state in STATES for action in ("pause", "resume", "rollback")}


def test_steering_an_unknown_line_is_refused() -> None:
    it = bench()
    assert refusal(it.steer("pause")) == "there is no model line 'l'; the lines are: none"
    it.begin()
    assert refusal(it.steer("pause", line="m")) == "there is no model line 'm'; the lines are: l"


def test_repeated_old_steering_request_changes_nothing() -> None:
    it = bench()
    it.begin()
    it.steer("pause", "one")
    it.steer("resume", "two")
    assert answer(it.steer("pause", "one")).lines[0].status == "running"
    it.steer("rollback", "three")
    for device in list(it.line().members):
        it.report(device, 2, 0, "withdrawn")
    it.begin(2, serial=3, ticket="u")
    assert answer(it.steer("rollback", "three")).lines[0].status == "running"


def test_paused_rollout_sends_no_orders_and_stage_resumes() -> None:
    it = bench()
    it.begin()
    it.steer("pause")
    members = set(it.line().members)
    assert sends(it.wait(10_000)) == []
    it.all_well(1)
    it.wait(10_000)
    assert set(it.line().members) == members
    it.steer("resume", "r")
    it.wait(RULES.soak)
    assert set(it.line().members) == set(TEN)


# --- answers


def test_unknown_line_has_no_view() -> None:
    assert bench().ask("l") == ()
    assert bench().ask() == ()


def test_all_lines_at_maximum_size_fit_in_one_message() -> None:
    it = RolloutBench()
    name = "x" * 60
    stages = tuple((at + 1) / 20 for at in range(20))
    for number in range(MAX_LINES):
        it.join("s0", ("d" * 63,), revision=number + 2)
        it.begin(line=f"{name}-{number:02}", ticket=f"t-{number}", stages=stages, undo=False, rules=HealthRules())
        detail = "€" * 2000
        it.report("d" * 63, 1, 0, "failed", detail=detail, line=f"{name}-{number:02}")
    views = it.ask()
    assert len(views) == MAX_LINES
    assert all(view.devices == () and len(view.detail) == 200 for view in views)
    assert len(pack(Packet(1, BOOT, Releases("q", views)))) < PORTABLE_PAYLOAD


def test_unknown_steering_action_is_rejected() -> None:
    assert msgspec.convert({"ticket": "t", "line": "l", "action": "pause"}, Steer)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ticket": "t", "line": "l", "action": "stop"}, Steer)
