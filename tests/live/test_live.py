"""The roles as processes over a real Mosquitto: same bits as in memory, also if any of them is killed."""

from collections import Counter
from itertools import count

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from coordinator.compiling.prediction_model import bake
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from tests.live.live_fleet import LiveFleet, job_text, split_digits

SITES = {"edge-1": ["pi-1", "pi-2"], "edge-2": ["pi-3", "pi-4"]}
DEVICES = [device for devices in SITES.values() for device in devices]
# Much training on few samples of few classes: the gate would rightly object, and is not under test.
# The lease is one that no device misses while it is killed and restarted, however busy the machine is.
SLOW = "[training]\nepochs = 150\n[gate]\non = false\n[tours]\nlease = 600.0\n"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One fleet for many jobs; every broker takes packets of at most 128 KB."""
    live = LiveFleet(tmp_path_factory.mktemp("live"), SITES, own_brokers=True, max_packet=128_000)
    yield live
    live.stop()


@pytest.fixture
def name():
    """Return a unique job name: all its randomness comes from the seed and the devices' names."""
    return f"job-{next(NUMBERS)}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the kit and the model of the same job over the in-memory link."""
    folder = tmp_path_factory.mktemp("memory")
    split_digits(folder, DEVICES)
    known: dict[tuple[str, int], tuple[Kit, np.ndarray]] = {}

    def run(more: str = "", rounds: int = 2) -> tuple[Kit, np.ndarray]:
        if (more, rounds) not in known:
            data = {device: DataSettings(path=str(folder / f"{device}.npz")) for device in DEVICES}
            memory = MemoryFleet(data, {site: tuple(devices) for site, devices in SITES.items()})
            memory.submit(job_text("job", rounds) + more)
            job, blobs = memory.run("job"), memory.stores[CLOUD].blobs
            assert job.status == "done"
            assert job.kit is not None
            kit = unpack_blob(blobs.read(job.kit.digest), Kit)
            known[more, rounds] = kit, vectors.load(blobs, job.vectors["model"], kit.model)
        return known[more, rounds]

    return run


def weights(model: bytes) -> list[np.ndarray]:
    return [numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(model).graph.initializer]


def check_same_bits(fleet, name, expected):
    assert np.array_equal(fleet.model(name), expected[1])


def check_all_visits_once(fleet, name, view, rounds=2):
    assert (view.status, [report.visits for report in view.history]) == ("done", [4] * rounds), view
    trained = Counter(visit for visit in fleet.trained() if visit.startswith(f"{name} "))
    assert set(trained.values()) == {1}, trained


def test_mqtt_run_matches_memory_link_and_export_predicts(fleet, name, undisturbed):
    view = fleet.run(job_text(name), name)
    check_all_visits_once(fleet, name, view)
    assert {"vts", "intra_cs", "inter_cs"} <= view.history[-1].quality.keys()
    check_same_bits(fleet, name, undisturbed())
    with fleet.operator() as operator:
        model, accuracy, _ = operator.export(name)
    for ours, theirs in zip(weights(model), weights(bake(*undisturbed())), strict=True):
        assert np.array_equal(ours, theirs)
    assert accuracy == view.accuracy
    session = onnxruntime.InferenceSession(model)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert session.run(None, {"x": np.zeros((3, 1, 8, 8), np.float32)})[0].shape == (3, 10)


def test_killed_and_restarted_nodes_end_with_same_bits(fleet, name, undisturbed):
    """One node of each role is killed, each during a visit of a separate round."""
    fleet.submit(job_text(name, rounds=3) + SLOW)
    fleet.wait_for("cloud", f"job {name}: 4 devices estimated")
    for number, victim in enumerate(("pi-1", "edge-1", "cloud"), 1):
        fleet.wait_for("pi-1", f"visit {name} round {number} tour", 2 if number == 1 else 1)
        fleet.kill(victim)
        fleet.start(victim)
    check_all_visits_once(fleet, name, fleet.finish(name), rounds=3)
    check_same_bits(fleet, name, undisturbed(SLOW, rounds=3))


def test_killed_brokers_only_delay_and_ctrl_c_is_resumable(fleet, name, undisturbed):
    """The brokers are killed in the first two rounds, all roles in the last one."""
    fleet.submit(job_text(name, rounds=3) + SLOW)
    for number, broker in enumerate(("cloud", "edge-1"), 1):
        fleet.wait_for("cloud", f"job {name} round {number}: 2 tours")
        fleet.restart_broker(broker)
    fleet.wait_for("cloud", f"job {name} round 3: 2 tours")
    for node in fleet.commands:
        assert fleet.interrupt(node) == 0
        assert "Traceback" not in fleet.log(node)
    for node in fleet.commands:
        fleet.start(node)
    check_all_visits_once(fleet, name, fleet.finish(name), rounds=3)
    check_same_bits(fleet, name, undisturbed(SLOW, rounds=3))


def test_model_of_8_mb_passes_through_128_kb_packets(fleet, name):
    # One tour without an estimation, in few large batches: the path of the model is under test, not its training.
    text = job_text(name, rounds=1).replace("[16]", "[1400, 1400]").partition("[arranger]")[0]
    view = fleet.run(f'strategy = "chain"\n{text}[training]\nepochs = 1\nbatch = 512\n', name)
    assert (view.status, view.history[0].visits) == ("done", 4), view
    blobs = (fleet.folder / "stores" / "cloud" / "blobs").iterdir()
    assert max(path.stat().st_size for path in blobs) > 8_000_000


def test_permanently_lost_site_does_not_stop_the_job(fleet, name):
    """Runs last: the site stays lost. Its devices are paused before, so that its tours are running then."""
    lost = ("edge-2", "pi-3", "pi-4")
    fleet.wait_for_devices()
    for device in lost[1:]:
        fleet.pause(device)
    text = job_text(name, devices=2).partition("[arranger]")[0]
    tours = '[training]\nepochs = 1\n[tours]\nsite_lease = 4.0\non_lost_site = "drop"\n'
    fleet.submit(f'strategy = "fedavg"\n{text}{tours}')
    fleet.wait_for("cloud", f"job {name} round 1: 4 tours")
    for node in lost:
        fleet.kill(node)
    view = fleet.finish(name)
    assert view.status == "done"
    assert any("edge-2" in line for report in view.history for line in report.failures)
