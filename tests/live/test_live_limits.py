"""A device that turns hot in the middle of a visit: slowed, then declined with the reason, back when it has cooled."""

import pytest

from tests.edge_agent.limits.fake_root import FakeRoot
from tests.live.live_fleet import LiveFleet, job_text

LIMITS = "[limits]\nthrottle_at = 70\nstop_at = 80\nroot = '{root}'\n"
LONG = "[training]\nepochs = 200\n[gate]\non = false\n"
ROUNDS = 4


@pytest.fixture
def fleet(tmp_path):
    live = LiveFleet(tmp_path, {"edge-1": ["pi-1", "pi-2"]}, own_brokers=False)
    yield live
    live.stop()


def test_a_tour_goes_on_without_a_hot_device_and_with_it_when_it_has_cooled(fleet, tmp_path) -> None:
    root = FakeRoot(tmp_path)
    root.heat(45)
    (tmp_path / "hot.toml").write_text(LIMITS.format(root=root.path))
    fleet.wait_for("pi-1", "connected")  # Python itself loses a Ctrl-C in its first moments
    fleet.interrupt("pi-1")
    fleet.commands["pi-1"].append(str(tmp_path / "hot.toml"))
    fleet.start("pi-1")
    fleet.submit(job_text("job", ROUNDS, devices=2).replace("sets = 2", "sets = 1") + LONG)
    fleet.wait_for("cloud", "job job: 2 devices estimated")
    root.heat(79.9)
    fleet.wait_for("pi-1", "training is slowed: it is hot")
    assert "declined" not in fleet.log("pi-1")
    root.heat(85)
    fleet.wait_for("pi-1", "declined job round 1")
    fleet.wait_for("pi-1", "declined job round 2")  # this one was never begun
    assert fleet.log("pi-1").count("85 °C; works again below 70 °C") == 2
    before = fleet.log("pi-1").count("trained job")
    root.heat(60)
    fleet.wait_for("pi-1", "trained job", before + 1)
    view = fleet.finish("job")
    assert view.status == "done"
    assert [report.visits for report in view.history][:2] == [1, 1]
    assert view.history[-1].visits == 2
    assert any("hot: 85 °C" in line for line in view.history[0].failures), view.history[0].failures
    assert "trained" not in fleet.log("pi-1").partition("declined job round 1")[2].partition("declined job round 2")[0]
