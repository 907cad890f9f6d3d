"""Which sites and devices a coordinator knows of: rosters, asked for until they are told."""

from __future__ import annotations

from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.rounds.planning import PlanRound
from sojourn.node.machine import Linked, Present, Pull, Pulled, PullFailed, Woke
from sojourn.protocol.messages import Birth, Death, Roster, RosterAsk, RosterSeen, Submit
from sojourn.protocol.wire import Epoch, Member
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, MEMBERS, OFFER, OPERATOR, Bench, site, text
from tests.sojourn.store.replays import sends


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
    bench.compile()
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
    assert plan.reach == {"s1": ("a",), "s2": ("a",)}


def test_a_roster_of_a_site_that_lost_its_store_counts() -> None:
    bench = Bench()
    bench.join("s1", ("a",), Epoch(9, b"12345678"), revision=7)
    bench.join("s1", ("b",), Epoch(1, b"abcdefgh"), revision=1)
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
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
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
    assert plan.reach == {"s1": ("of-2",)}


def test_edge_servers_are_asked_for_their_rosters_until_they_tell() -> None:
    bench = Bench()
    assert sends(bench.tell(Present(site("s1"), BOOT, Birth()), 0.0)) == [RosterAsk()]
    assert sends(bench.tell(Woke(), 1.0)) == [RosterAsk()]
    assert sends(bench.tell(Linked(), 1.5)) == [RosterAsk()]
    bench.tell(Present(site("s1"), BOOT, Death()), 2.0)
    assert bench.cloud.wake_at() is None
