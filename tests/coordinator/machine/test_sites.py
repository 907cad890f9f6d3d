"""Which sites and devices a coordinator knows of: rosters, asked for until they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.machine.sites import (
    DEVICES,
    ROSTER_BYTES,
    ROSTER_PATIENCE,
    SETTLED,
    ReadRoster,
    RosterRead,
    Sites,
    read_roster,
)
from coordinator.records import JobCompiled, TourPlan
from coordinator.rounds.lacking import left_aside
from coordinator.rounds.node_keys import NodeKeys
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.state import JobState
from sojourn.errors import InvalidMessage
from sojourn.node.machine import Linked, Present, Pull, Pulled, PullFailed, Say, Woke
from sojourn.protocol.abilities import ABILITIES, MODEL_STATE, MODEL_TRUNK, OF_MODELS
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Birth, Death, Roster, RosterAsk, RosterSeen, Submit
from sojourn.protocol.wire import Epoch, Member, Offer, Ref
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import (
    BOOT,
    EXEMPLARS,
    KIT,
    MEMBERS,
    MODEL,
    OFFER,
    OPERATOR,
    TEST,
    Bench,
    site,
    text,
)
from tests.sojourn.store.replays import sends

if TYPE_CHECKING:
    from pathlib import Path


def test_a_roster_is_seen_only_when_it_was_read() -> None:
    bench = Bench()
    bench.tell(Present(site("s1"), BOOT, Birth()))
    effects = bench.hear(site("s1"), Roster(1, MEMBERS))
    assert effects == [Pull(MEMBERS, site("s1"))]
    bench.tell(PullFailed(MEMBERS.digest, "disk"))
    assert bench.hear(site("s1"), Roster(1, MEMBERS)) == [Pull(MEMBERS, site("s1"))]
    assert MEMBERS.digest in bench.cloud.live()
    bench.tell(Pulled(MEMBERS.digest))
    effects = bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, ()))
    assert sends(effects) == [RosterSeen(1)]
    assert sends(bench.hear(site("s1"), Roster(1, MEMBERS))) == [RosterSeen(1)]
    assert MEMBERS.digest not in bench.cloud.live()


def test_two_sites_with_the_same_devices_have_the_same_roster() -> None:
    bench = Bench()
    for name in ("s1", "s2"):
        bench.tell(Present(site(name), BOOT, Birth()))
        bench.hear(site(name), Roster(1, MEMBERS))
    bench.tell(Pulled(MEMBERS.digest))
    members = (Member("a", BOOT, OFFER),)
    for _ in range(2):
        bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members))
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile(now=SETTLED)
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("a",), "s2": ("a",)}


def test_the_first_round_waits_until_both_sites_have_named_the_last_device() -> None:
    """Whoever names it first would have it alone, and the same fleet would begin in another way each time."""
    bench = Bench()
    bench.join("s1", ("a", "b"), now=0.0)
    bench.join("s2", ("a",), now=0.1)
    bench.hear(OPERATOR, Submit("t", text()), 0.1)
    bench.compile(now=0.2)
    assert not _plans(bench)
    assert bench.cloud.state.jobs["job"].detail == "devices are coming just now"
    bench.join("s2", ("a", "b"), revision=2, now=0.4)
    assert not _plans(bench)
    assert bench.cloud.wake_at() == pytest.approx(0.4 + SETTLED)
    bench.tell(Woke(), 0.4 + SETTLED)
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("a", "b"), "s2": ("a", "b")}


@pytest.mark.parametrize("every", [0.9 * SETTLED, 0.999 * SETTLED])
def test_who_lets_rosters_change_on_and_on_does_not_hold_a_job(every: float) -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"), now=0.0)
    bench.join("s2", ("a",), now=0.0)
    bench.hear(OPERATOR, Submit("t", text()), 0.0)
    bench.compile(now=0.0)
    for moment in range(1, 40):
        now = moment * every
        bench.join("s2", ("a", "b")[: 1 + moment % 2], revision=1 + moment, now=now)
        assert bool(_plans(bench)) == (now >= ROSTER_PATIENCE)


def test_too_few_devices_are_told_at_once_though_more_may_come() -> None:
    bench = Bench()
    bench.join("s1", ("a",), now=0.0)
    bench.join("s2", ("a",), now=0.0)
    bench.hear(OPERATOR, Submit("t", text()), 0.0)
    bench.compile(now=0.0)
    assert len(_plans(bench)) == 1


def _plans(bench: Bench) -> list[PlanRound]:
    return [work for work in bench.work.values() if isinstance(work, PlanRound)]


def test_a_roster_of_a_site_that_lost_its_store_counts() -> None:
    bench = Bench()
    bench.join("s1", ("a",), Epoch(9, b"12345678"), revision=7)
    bench.join("s1", ("b",), Epoch(1, b"abcdefgh"), revision=1)
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("b",)}


def test_an_older_roster_does_not_replace_a_newer_one() -> None:
    bench = Bench()
    bench.tell(Present(site("s1"), BOOT, Birth()))
    old, new = ref_of(b"old"), ref_of(b"new")
    bench.hear(site("s1"), Roster(1, old))
    bench.tell(Pulled(old.digest))
    bench.hear(site("s1"), Roster(2, new))
    bench.tell(Pulled(new.digest))
    assert len(bench.work) == 2

    def read(work: ReadRoster) -> RosterRead:
        return RosterRead(work.site, work.epoch, work.revision, (Member(f"of-{work.revision}", BOOT, OFFER),))

    for _ in range(2):
        bench.did(ReadRoster, read)
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("of-2",)}


def test_edge_servers_are_asked_for_their_rosters_until_they_tell() -> None:
    bench = Bench()
    assert sends(bench.tell(Present(site("s1"), BOOT, Birth()), 0.0)) == [RosterAsk()]
    assert sends(bench.tell(Woke(), 1.0)) == [RosterAsk()]
    assert sends(bench.tell(Linked(), 1.5)) == [RosterAsk()]
    bench.tell(Present(site("s1"), BOOT, Death()), 2.0)
    assert bench.cloud.wake_at() is None


def took(bench: Bench, name: str, *members: Member, revision: int = 1) -> None:
    """A site is born, and tells exactly these members."""
    bench.tell(Present(site(name), BOOT, Birth()))
    ref = ref_of(f"{name} {revision}".encode())
    bench.hear(site(name), Roster(revision, ref, OF_MODELS))
    bench.tell(Pulled(ref.digest))
    bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members))


def test_a_device_that_another_site_only_claims_counts_where_it_is() -> None:
    bench = Bench()
    theirs, claimed = Member("a", Epoch(3, b"12345678"), OFFER), Member("a", Epoch(99, b"guessed!"), OFFER)
    took(bench, "s2", theirs)
    took(bench, "s1", claimed, Member("b", BOOT, OFFER))
    assert bench.cloud.sites.reach() == {"s1": ("b",), "s2": ("a",)}
    took(bench, "s2", revision=2)  # it has left there
    assert bench.cloud.sites.reach() == {"s1": ("a", "b"), "s2": ()}


def test_a_device_whose_site_is_gone_counts_where_it_turns_up() -> None:
    bench = Bench()
    took(bench, "s2", Member("a", Epoch(3, b"12345678"), OFFER))
    bench.tell(Present(site("s2"), BOOT, Death()))
    took(bench, "s1", Member("a", Epoch(4, b"abcdefgh"), OFFER))
    assert bench.cloud.sites.reach() == {"s1": ("a",)}
    bench.tell(Present(site("s2"), BOOT, Birth()))
    assert bench.cloud.sites.reach() == {"s1": ("a",), "s2": ()}


def test_a_roster_that_is_too_large_is_not_fetched_or_not_taken() -> None:
    bench = Bench()
    bench.tell(Present(site("s1"), BOOT, Birth()))
    (said,) = bench.hear(site("s1"), Roster(1, Ref(bytes(32), ROSTER_BYTES + 1)))
    assert isinstance(said, Say)
    blobs = MemoryBlobs()
    data = pack_blob([Member(f"d{number}", BOOT, None) for number in range(DEVICES + 1)])
    blobs.put(data)
    with pytest.raises(InvalidMessage, match="10001 devices"):
        read_roster(ReadRoster("s1", BOOT, 1, ref_of(data)), blobs)


def test_nothing_is_planned_for_a_device_that_its_offer_does_not_list() -> None:
    bench = Bench()
    said = {
        "silent": None,
        "older": OFFER,
        "able": msgspec.structs.replace(OFFER, abilities=ABILITIES),
        "plain": msgspec.structs.replace(OFFER, abilities=("encoding float32", "optimiser sgd", "estimator none")),
        "other": msgspec.structs.replace(OFFER, objectives=("dyn",)),
    }
    took(bench, "s1", *(Member(name, BOOT, offer) for name, offer in said.items()))
    reach = bench.cloud.sites.reach
    assert reach()["s1"] == tuple(said)
    assert reach("sgd", frozenset({"encoding float32", "optimiser sgd"}))["s1"] == ("older", "able", "plain")
    assert reach("sgd", frozenset({"encoding float16"}))["s1"] == ("older", "able")
    assert reach("sgd", frozenset({"encoding of tomorrow"}))["s1"] == ()
    bench.hear(OPERATOR, Submit("t", text(encoding="int8", **{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("older", "able")}


def test_a_model_with_state_goes_only_to_sites_and_devices_that_know_it() -> None:
    """An older edge server would take the state for weights, and an older agent has no place for it."""
    bench, able = Bench(), msgspec.structs.replace(OFFER, abilities=ABILITIES)
    sites: dict[str, tuple[Any, Offer]] = {
        "new": (OF_MODELS, able),
        "old": (msgspec.UNSET, able),
        "agents": (OF_MODELS, OFFER),
    }
    for name, (abilities, offer) in sites.items():
        bench.tell(Present(site(name), BOOT, Birth()))
        members = ref_of(name.encode())
        bench.hear(site(name), Roster(1, members, abilities))
        bench.tell(Pulled(members.digest))
        listed = (Member(f"at-{name}", BOOT, offer),)
        bench.did(ReadRoster, lambda work, it=listed: RosterRead(work.site, work.epoch, work.revision, it))
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    held, asks = {"model": MODEL}, (MODEL_STATE,)
    bench.did(PrepareJob, lambda work: JobCompiled(work.name, KIT, held, held, EXEMPLARS, TEST, asks=asks))
    (plan,) = _plans(bench)
    assert plan.reach == {"new": ("at-new",), "old": (), "agents": ()}
    assert plan.unable == ("at-agents", "at-old")
    (line,) = left_aside(plan, ())
    assert "model state" in line
    assert "update their agents and edge servers" in line
    assert "at-agents, at-old" in line


def test_a_lost_tour_of_such_a_model_is_not_given_to_a_site_that_does_not_know_it() -> None:
    sites, tour = Sites(), TourPlan(0, "s1", ("a",))
    able = msgspec.structs.replace(OFFER, abilities=ABILITIES)
    for name, abilities in (("s1", OF_MODELS), ("s2", msgspec.UNSET)):
        sites.present(Present(site(name), BOOT, Birth()), 0.0)
        sites.roster(site(name), BOOT, Roster(1, MEMBERS, abilities))
        sites.take(RosterRead(name, BOOT, 1, (Member("a", BOOT, able),)), 0.0)
    assert sites.move(tour, "sgd", frozenset({MODEL_STATE})) is None
    moved = sites.move(tour, "sgd", frozenset())
    assert moved is not None
    assert moved.site == "s2"


def test_a_kit_with_a_trunk_goes_only_to_agents_that_know_of_trunks() -> None:
    bench = Bench()
    said = {"older": OFFER, "able": msgspec.structs.replace(OFFER, abilities=ABILITIES)}
    took(bench, "s1", *(Member(name, BOOT, offer) for name, offer in said.items()))
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile(asks=(MODEL_TRUNK,))
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("able",)}
    assert plan.unable == ("older",)
    assert "model trunk" in "".join(left_aside(plan, ()))
    assert JobState("job", "").asks is msgspec.UNSET


def read_by(keys: NodeKeys, *devices: str, at: str = "s1") -> tuple[str, ...]:
    """The devices of a roster that count."""
    blobs, data = MemoryBlobs(), pack_blob([Member(name, BOOT, None) for name in devices])
    blobs.put(data)
    return tuple(it.device for it in read_roster(ReadRoster(at, BOOT, 1, ref_of(data)), blobs, keys).members)


def test_devices_whose_results_cannot_be_verified_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = NodeKeys(None, "enrolled", {"a": bytes(32)})
    for _ in range(3):
        assert read_by(keys, "a", "b", "c") == ("a", "b", "c")
    (line,) = caplog.messages
    assert line.startswith("site s1: results of these devices are not verified")
    assert "no key of them: b, c." in line
    assert "sojourn fleet keys" in line
    assert "node_keys_file" in line
    read_by(keys, "a", "b", "c", "d")
    read_by(keys, "e", at="s2")
    assert [(": d." in each, "site s2" in each) for each in caplog.messages[1:]] == [(True, False), (False, True)]


def test_devices_without_the_key_that_is_required_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = NodeKeys(None, "require", {"a": bytes(32)})
    for _ in range(2):
        assert read_by(keys, "a", "b") == ("a",)
    (line,) = caplog.messages
    assert line.startswith("site s1: these devices do not take part")


def test_a_fleet_whose_devices_never_sign_has_no_such_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    read_by(NodeKeys(None), "a")
    read_by(NodeKeys(None, "off", {"a": bytes(32)}), "b")
    assert not caplog.messages
    read_by(NodeKeys(tmp_path / "not-written-yet.toml"), "a")
    assert len(caplog.messages) == 1
