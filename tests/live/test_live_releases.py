"""Three agents as processes: good releases reach all of them in stages, each bad kind ends by the rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from edge_agent.inference.model import Model
from sojourn.errors import JobError
from sojourn.protocol.signing import Signer
from tests.live.live_fleet import job_text
from tests.live.release_goods import broken, digits_release, forgetful, slow
from tests.live.released_fleet import DEVICES, RULES, ReleasedFleet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coordinator.releases.file import ReleaseFile


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    live = ReleasedFleet(tmp_path_factory.mktemp("released"))
    yield live
    live.stop()


def test_first_release_reaches_all_devices_in_stages(fleet: ReleasedFleet) -> None:
    view = fleet.roll_out(digits_release(1))
    assert (view.status, view.serves, view.counts) == ("done", 1, {"serving": 3})
    assert sorted(device.stage for device in view.devices) == [1, 2, 3]  # 5 % is one, half are two
    assert [fleet.log("cloud").count(f"release digits 1: stage {n} of 3") for n in (1, 2, 3)] == [1, 1, 1]
    fleet.all_predict(1)


def test_better_release_replaces_model_in_running_program(fleet: ReleasedFleet) -> None:
    with Model("digits", fleet.store("pi-2")) as model:
        assert model.version == 1
        view = fleet.roll_out(digits_release(2))
        fleet.wait(lambda: model.version == 2, "the hot swap")
        for _ in range(60):
            model.predict([[0.0] * 64])
        with fleet.operator() as operator:
            fleet.wait(lambda: _health(operator, "pi-2").predictions >= 60, "what the program did")
    assert (view.status, view.before, view.serves) == ("done", 1, 2)
    health = view.devices[0].health
    assert health.rows > 0
    assert health.accuracy == health.accuracy_before > 0.9
    fleet.all_predict(2)


@pytest.mark.parametrize(
    ("make", "version", "why"),
    [(forgetful, 3, "accuracy fell"), (slow, 4, "times as slow as before"), (broken, 5, "failed: ")],
    ids=["less accurate", "slower", "does not load"],
)
def test_bad_release_stops_at_first_devices_and_rolls_back(
    fleet: ReleasedFleet, make: Callable[[int], ReleaseFile], version: int, why: str
) -> None:
    latency = 2.0 if make is slow else RULES.latency
    view = fleet.roll_out(make(version), rules=msgspec.structs.replace(RULES, latency=latency))
    assert (view.status, view.serves, view.stage) == ("rolled-back", 2, 1)
    assert why in view.detail
    touched = [device for device in DEVICES if f"release digits {version}" in fleet.log(device)]
    assert len(touched) == 2  # the one of the first stage, and the one that was asked besides
    assert fleet.current() == {2}
    fleet.all_predict(2)


def test_release_signed_by_another_key_never_reaches_devices(fleet: ReleasedFleet, tmp_path: Path) -> None:
    thief = Signer.generate(tmp_path / "thief.key")
    before = fleet.view()
    with pytest.raises(JobError, match="the order forward is not signed with the fleet's release key"):
        fleet.begin(digits_release(6), signer=thief)
    after = fleet.view()
    assert (after.version, after.serial, after.status) == (before.version, before.serial, before.status)
    assert not any("digits 6" in fleet.log(name) for name in ("cloud", *DEVICES))


def test_devices_reject_foreign_key_if_coordinator_has_none(fleet: ReleasedFleet, tmp_path: Path) -> None:
    thief = Signer.generate(tmp_path / "thief.key")
    fleet.restart_coordinator(verifies=False)
    view = fleet.roll_out(digits_release(6), signer=thief)
    fleet.restart_coordinator(verifies=True)
    assert view.status == "rolled-back"
    assert "refused: the order is not signed with the fleet's release key" in view.detail
    assert "this coordinator has no release key" in fleet.log("cloud")
    assert fleet.current() == {2}


def test_program_errors_on_two_devices_roll_back_the_release(
    fleet: ReleasedFleet,
) -> None:
    # It ends when two devices complain, not before.
    fleet.begin(digits_release(7), rules=msgspec.structs.replace(RULES, soak=3600.0))
    first = _first(fleet, 7)
    with Model("digits", fleet.store(first)) as model:
        fleet.wait(lambda: model.version == 7, "the new version in the program")
        model.report_error("this is a three")
        fleet.wait(lambda: len(fleet.view().devices) == 2, "another device that is asked")
        assert "waiting for other devices" in fleet.view().detail
        (second,) = [each.device for each in fleet.view().devices if each.device != first]
        with Model("digits", fleet.store(second)) as other:
            fleet.wait(lambda: other.version == 7, "the new version there")
            other.report_error("this is a three, too")
        view = fleet.end()
        fleet.wait(lambda: model.version == 2, "the old version in the program")
    assert view.status == "rolled-back"
    assert view.detail.count("1 errors") == 2
    assert fleet.current() == {2}


def test_killed_agents_end_with_the_new_release(fleet: ReleasedFleet) -> None:
    fleet.begin(digits_release(8, weight=2_000_000))
    first = _first(fleet, 8)
    fleet.wait(lambda: "release digits 8" in fleet.log(first), "the order")
    for device in DEVICES:
        fleet.kill(device)
        assert fleet.current() <= {2, 8}
    for device in DEVICES:
        fleet.start(device)
    view = fleet.end()
    assert (view.status, view.serves) == ("done", 8)
    fleet.all_predict(8)


def test_deployed_release_is_rolled_back_by_one_command(fleet: ReleasedFleet) -> None:
    with fleet.operator() as operator:
        operator.steer("digits", "rollback")
        view = fleet.end()
        fleet.wait(lambda: operator.releases("digits")[0].counts == {"serving": 3}, "all devices")
    assert (view.status, view.serves) == ("rolled-back", 2)
    assert fleet.current() == {2}
    fleet.all_predict(2)


def test_job_and_release_share_the_devices(fleet: ReleasedFleet) -> None:
    fleet.submit(job_text("job", rounds=4, devices=3))
    fleet.wait_for("cloud", "job job: 3 devices estimated")
    view = fleet.roll_out(digits_release(9))
    job = fleet.finish("job")
    assert (view.status, job.status) == ("done", "done")
    assert [(report.visits, report.lost) for report in job.history] == [(3, 0)] * 4
    fleet.all_predict(9)
    with fleet.operator() as operator:
        operator.steer("digits", "rollback")
        fleet.wait(lambda: fleet.view().counts == {"serving": 3} and fleet.current() == {2}, "the way back")


def test_devices_store_only_ordered_releases(fleet: ReleasedFleet) -> None:
    """The disks keep the served version, and the one before."""
    for device in DEVICES:
        folder = fleet.store(device) / "release" / "digits"
        named = json.loads((folder / "current").read_text())["version"]
        assert named == 2
        assert len(list(folder.glob("*.onnx"))) <= 2


def _first(fleet: ReleasedFleet, version: int) -> str:
    """Return the device of the first stage."""
    with fleet.operator() as operator:
        fleet.wait(lambda: operator.releases("digits")[0].version == version, "the rollout")
        fleet.wait(lambda: operator.releases("digits")[0].devices, "its first device")
        return operator.releases("digits")[0].devices[0].device


def _health(operator, device: str):
    view = next(each for each in operator.releases("digits")[0].devices if each.device == device)
    return view.health
