"""The sites and devices that a coordinator knows: rosters are requested until they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.job_state import JobState
from coordinator.machine.sites import (
    MAX_DEVICES,
    MAX_ROSTER_SIZE,
    ROSTER_TIMEOUT,
    SETTLE_TIME,
    ReadRoster,
    RosterRead,
    Sites,
    read_roster,
)
from coordinator.records import JobCompiled, TourPlan
from coordinator.rounds.device_signatures import NodeKeys
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.round_messages import skipped_devices
from sojourn.errors import InvalidMessage
from sojourn.node.machine import LinkUp, Log, Present, Pull, Pulled, PullFailed, TimerFired
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Birth, Death, Roster, RosterAsk, RosterSeen
from sojourn.protocol.operator_messages import Submit
from sojourn.protocol.task import ABILITIES, MODEL_STATE, MODEL_TRUNK, OF_MODELS
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


def test_roster_counts_only_after_it_was_read() -> None:
    bench = Bench()
    bench.handle(Present(site("s1"), BOOT, Birth()))
    effects = bench.receive(site("s1"), Roster(1, MEMBERS))
    assert effects == [Pull(MEMBERS, site("s1"))]
    bench.handle(PullFailed(MEMBERS.digest, "disk"))
    assert bench.receive(site("s1"), Roster(1, MEMBERS)) == [Pull(MEMBERS, site("s1"))]
    assert MEMBERS.digest in bench.cloud.live()
    bench.handle(Pulled(MEMBERS.digest))
    effects = bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, ()))
    assert sends(effects) == [RosterSeen(1)]
    assert sends(bench.receive(site("s1"), Roster(1, MEMBERS))) == [RosterSeen(1)]
    assert MEMBERS.digest not in bench.cloud.live()


def test_sites_with_equal_devices_share_a_roster_blob() -> None:
    bench = Bench()
    for name in ("s1", "s2"):
        bench.handle(Present(site(name), BOOT, Birth()))
        bench.receive(site(name), Roster(1, MEMBERS))
    bench.handle(Pulled(MEMBERS.digest))
    members = (Member("a", BOOT, OFFER),)
    for _ in range(2):
        bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members))
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile(now=SETTLE_TIME)
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("a",), "s2": ("a",)}


def test_first_round_waits_for_rosters_of_both_sites() -> None:
    """The first site to name it would have it alone, so the same fleet would begin differently each time."""
    bench = Bench()
    bench.join("s1", ("a", "b"), now=0.0)
    bench.join("s2", ("a",), now=0.1)
    bench.receive(OPERATOR, Submit("t", text()), 0.1)
    bench.compile(now=0.2)
    assert not _plans(bench)
    assert bench.cloud.state.jobs["job"].detail == "devices are connecting"
    bench.join("s2", ("a", "b"), revision=2, now=0.4)
    assert not _plans(bench)
    assert bench.cloud.wake_at() == pytest.approx(0.4 + SETTLE_TIME)
    bench.handle(TimerFired(), 0.4 + SETTLE_TIME)
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("a", "b"), "s2": ("a", "b")}


@pytest.mark.parametrize("every", [0.9 * SETTLE_TIME, 0.999 * SETTLE_TIME])
def test_ever_changing_rosters_do_not_block_a_job(every: float) -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"), now=0.0)
    bench.join("s2", ("a",), now=0.0)
    bench.receive(OPERATOR, Submit("t", text()), 0.0)
    bench.compile(now=0.0)
    for moment in range(1, 40):
        now = moment * every
        bench.join("s2", ("a", "b")[: 1 + moment % 2], revision=1 + moment, now=now)
        assert bool(_plans(bench)) == (now >= ROSTER_TIMEOUT)


def test_too_few_devices_are_reported_at_once() -> None:
    bench = Bench()
    bench.join("s1", ("a",), now=0.0)
    bench.join("s2", ("a",), now=0.0)
    bench.receive(OPERATOR, Submit("t", text()), 0.0)
    bench.compile(now=0.0)
    assert len(_plans(bench)) == 1


def _plans(bench: Bench) -> list[PlanRound]:
    return [work for work in bench.work.values() if isinstance(work, PlanRound)]


def test_roster_of_site_with_new_store_is_accepted() -> None:
    bench = Bench()
    bench.join("s1", ("a",), Epoch(9, b"12345678"), revision=7)
    bench.join("s1", ("b",), Epoch(1, b"abcdefgh"), revision=1)
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("b",)}


def test_older_roster_does_not_replace_newer_one() -> None:
    bench = Bench()
    bench.handle(Present(site("s1"), BOOT, Birth()))
    old, new = ref_of(b"old"), ref_of(b"new")
    bench.receive(site("s1"), Roster(1, old))
    bench.handle(Pulled(old.digest))
    bench.receive(site("s1"), Roster(2, new))
    bench.handle(Pulled(new.digest))
    assert len(bench.work) == 2

    def read(work: ReadRoster) -> RosterRead:
        return RosterRead(work.site, work.epoch, work.revision, (Member(f"of-{work.revision}", BOOT, OFFER),))

    for _ in range(2):
        bench.did(ReadRoster, read)
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("of-2",)}


def test_rosters_are_requested_until_received() -> None:
    bench = Bench()
    assert sends(bench.handle(Present(site("s1"), BOOT, Birth()), 0.0)) == [RosterAsk()]
    assert sends(bench.handle(TimerFired(), 1.0)) == [RosterAsk()]
    assert sends(bench.handle(LinkUp(), 1.5)) == [RosterAsk()]
    bench.handle(Present(site("s1"), BOOT, Death()), 2.0)
    assert bench.cloud.wake_at() is None


def took(bench: Bench, name: str, *members: Member, revision: int = 1) -> None:
    """A site is born, and sends exactly these members."""
    bench.handle(Present(site(name), BOOT, Birth()))
    ref = ref_of(f"{name} {revision}".encode())
    bench.receive(site(name), Roster(revision, ref, OF_MODELS))
    bench.handle(Pulled(ref.digest))
    bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members))


def test_device_claimed_by_another_site_stays_at_its_site() -> None:
    bench = Bench()
    theirs, claimed = Member("a", Epoch(3, b"12345678"), OFFER), Member("a", Epoch(99, b"guessed!"), OFFER)
    took(bench, "s2", theirs)
    took(bench, "s1", claimed, Member("b", BOOT, OFFER))
    assert bench.cloud.sites.reach() == {"s1": ("b",), "s2": ("a",)}
    took(bench, "s2", revision=2)  # it has left there
    assert bench.cloud.sites.reach() == {"s1": ("a", "b"), "s2": ()}


def test_device_of_offline_site_moves_to_the_site_it_joins() -> None:
    bench = Bench()
    took(bench, "s2", Member("a", Epoch(3, b"12345678"), OFFER))
    bench.handle(Present(site("s2"), BOOT, Death()))
    took(bench, "s1", Member("a", Epoch(4, b"abcdefgh"), OFFER))
    assert bench.cloud.sites.reach() == {"s1": ("a",)}
    bench.handle(Present(site("s2"), BOOT, Birth()))
    assert bench.cloud.sites.reach() == {"s1": ("a",), "s2": ()}


def test_oversized_roster_is_not_fetched_or_not_accepted() -> None:
    bench = Bench()
    bench.handle(Present(site("s1"), BOOT, Birth()))
    (warning,) = bench.receive(site("s1"), Roster(1, Ref(bytes(32), MAX_ROSTER_SIZE + 1)))
    assert isinstance(warning, Log)
    blobs = MemoryBlobs()
    data = pack_blob([Member(f"d{number}", BOOT, None) for number in range(MAX_DEVICES + 1)])
    blobs.put(data)
    with pytest.raises(InvalidMessage, match="10001 devices"):
        read_roster(ReadRoster("s1", BOOT, 1, ref_of(data)), blobs)


def test_job_is_planned_only_for_devices_that_offer_it() -> None:
    bench = Bench()
    offers = {
        "silent": None,
        "older": OFFER,
        "able": msgspec.structs.replace(OFFER, abilities=ABILITIES),
        "plain": msgspec.structs.replace(OFFER, abilities=("encoding float32", "optimiser sgd", "estimator none")),
        "other": msgspec.structs.replace(OFFER, objectives=("dyn",)),
    }
    took(bench, "s1", *(Member(name, BOOT, offer) for name, offer in offers.items()))
    reach = bench.cloud.sites.reach
    assert reach()["s1"] == tuple(offers)
    assert reach("sgd", frozenset({"encoding float32", "optimiser sgd"}))["s1"] == ("older", "able", "plain")
    assert reach("sgd", frozenset({"encoding float16"}))["s1"] == ("older", "able")
    assert reach("sgd", frozenset({"encoding of tomorrow"}))["s1"] == ()
    bench.receive(OPERATOR, Submit("t", text(encoding="int8", **{"fleet.devices": 1})))
    bench.compile()
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("older", "able")}


def test_stateful_model_is_sent_only_to_nodes_that_support_it() -> None:
    """An edge server without this ability would treat state as weights, and an agent could not store it."""
    bench, able = Bench(), msgspec.structs.replace(OFFER, abilities=ABILITIES)
    sites: dict[str, tuple[Any, Offer]] = {
        "new": (OF_MODELS, able),
        "plain": ((), able),
        "agents": (OF_MODELS, OFFER),
    }
    for name, (abilities, offer) in sites.items():
        bench.handle(Present(site(name), BOOT, Birth()))
        members = ref_of(name.encode())
        bench.receive(site(name), Roster(1, members, abilities))
        bench.handle(Pulled(members.digest))
        listed = (Member(f"at-{name}", BOOT, offer),)
        bench.did(ReadRoster, lambda work, it=listed: RosterRead(work.site, work.epoch, work.revision, it))
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    held, asks = {"model": MODEL}, (MODEL_STATE,)
    bench.did(PrepareJob, lambda work: JobCompiled(work.name, KIT, held, held, EXEMPLARS, TEST, asks=asks))
    (plan,) = _plans(bench)
    assert plan.reach == {"new": ("at-new",), "plain": (), "agents": ()}
    assert plan.unable == ("at-agents", "at-plain")
    (line,) = skipped_devices(plan, ())
    assert "model state" in line
    assert "update their agents and edge servers" in line
    assert "at-agents, at-plain" in line


def test_lost_stateful_tour_skips_unsupporting_sites() -> None:
    sites, tour = Sites(), TourPlan(0, "s1", ("a",))
    able = msgspec.structs.replace(OFFER, abilities=ABILITIES)
    for name, abilities in (("s1", OF_MODELS), ("s2", ())):
        sites.present(Present(site(name), BOOT, Birth()), 0.0)
        sites.roster(site(name), BOOT, Roster(1, MEMBERS, abilities))
        sites.take(RosterRead(name, BOOT, 1, (Member("a", BOOT, able),)), 0.0)
    assert sites.move(tour, "sgd", frozenset({MODEL_STATE})) is None
    moved = sites.move(tour, "sgd", frozenset())
    assert moved is not None
    assert moved.site == "s2"


def test_kit_with_trunk_is_sent_only_to_supporting_agents() -> None:
    bench = Bench()
    offers = {"older": OFFER, "able": msgspec.structs.replace(OFFER, abilities=ABILITIES)}
    took(bench, "s1", *(Member(name, BOOT, offer) for name, offer in offers.items()))
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile(asks=(MODEL_TRUNK,))
    (plan,) = _plans(bench)
    assert plan.reach == {"s1": ("able",)}
    assert plan.unable == ("older",)
    assert "model trunk" in "".join(skipped_devices(plan, ()))
    assert JobState("job", "").asks == ()


def read_by(keys: NodeKeys, *devices: str, at: str = "s1") -> tuple[str, ...]:
    """Return the devices of a roster that count."""
    blobs, data = MemoryBlobs(), pack_blob([Member(name, BOOT, None) for name in devices])
    blobs.put(data)
    return tuple(it.device for it in read_roster(ReadRoster(at, BOOT, 1, ref_of(data)), blobs, keys).members)


def test_unverifiable_devices_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = NodeKeys(None, "enrolled", {"a": bytes(32)})
    for _ in range(3):
        assert read_by(keys, "a", "b", "c") == ("a", "b", "c")
    (line,) = caplog.messages
    assert line.startswith("site s1: results of these devices are not verified")
    assert "no key for them: b, c." in line
    assert "sojourn fleet keys" in line
    assert "node_keys_file" in line
    read_by(keys, "a", "b", "c", "d")
    read_by(keys, "e", at="s2")
    assert [(": d." in each, "site s2" in each) for each in caplog.messages[1:]] == [(True, False), (False, True)]


def test_devices_without_required_key_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = NodeKeys(None, "require", {"a": bytes(32)})
    for _ in range(2):
        assert read_by(keys, "a", "b") == ("a",)
    (line,) = caplog.messages
    assert line.startswith("site s1: these devices do not take part")


def test_fleet_without_signing_devices_logs_no_key_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    read_by(NodeKeys(None), "a")
    read_by(NodeKeys(None, "off", {"a": bytes(32)}), "b")
    assert not caplog.messages
    read_by(NodeKeys(tmp_path / "not-written-yet.toml"), "a")
    assert len(caplog.messages) == 1
