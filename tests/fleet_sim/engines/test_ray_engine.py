"""Ray actors on the nodes of a real cluster on this machine: the serial engine's bits, and failures."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fleet_sim.engines import SerialEngine, choose, ray_engine, visit_queue
from fleet_sim.engines.choosing import Hardware, pick
from fleet_sim.engines.ray_engine import RayEngine
from fleet_sim.engines.ray_worker import RayVisitTrainer, versions
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError, MachineError
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.engines.shares import (
    KINDS,
    assert_same,
    assert_warms_and_refuses,
    long_visit,
    result,
    shards,
    train,
    visit,
)
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
NODE: dict[str, Any] = {
    "node_ip_address": "127.0.0.1",
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_log_monitor": False,
}
LEAN: dict[str, Any] = {
    "prestart_worker_first_driver": False,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
    "health_check_timeout_ms": int(LIMIT * 1000),
    "timeout_ms_task_wait_for_death_info": int(LIMIT * 1000),
    "memory_monitor_refresh_ms": 0,
}
"""Processes start only for actors, and dead nodes are detected in two seconds instead of fifteen.

A node that is only slow is not considered dead: the connection to a dead one is refused at once. An actor is not
reported as unavailable because the cluster needs more than a second to detect its death, and none is killed because
other programs have filled the machine's memory.
"""
START = {"RAY_gcs_server_port_wait_time_s": f"{LIMIT:.0f}", "RAY_memory_monitor_refresh_ms": "0"}
"""Settings that Ray reads before a cluster exists."""
SLOW_CLOCK = f"""
import time, types
from ray._private import node
slow = lambda: time.monotonic() * 30 / {LIMIT}
node.time = types.SimpleNamespace(**{{**vars(time), "monotonic": slow}})
"""
"""Gives a node `LIMIT` seconds to start instead of 30, which Ray has no setting for."""
DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")
TEXT = """
strategy = "feddyn"
rounds = 2
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
training = { epochs = 1, batch = 16, lr = 0.1, weight_decay = 0.0 }
[simulation]
devices = 4
[split]
alpha = 0.5
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, on the loopback interface.

    RAY_TMPDIR instead of `temp_dir`: Ray creates only the folder it is given, but writes its address file into the one
    that the environment names, which need not exist.
    """
    before = dict(os.environ)
    ray = ray_engine._ray(local=True)
    from ray.cluster_utils import Cluster

    exec(SLOW_CLOCK, {})
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.environ |= START
    made = Cluster()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_engine, "START_TIMEOUT", LIMIT)
            patch.setattr(ray_engine, "CONNECT_TIMEOUT", LIMIT)
            made.add_node(**NODE, include_dashboard=False, _system_config=dict(LEAN))
            made.add_node(**NODE)
            yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def engine(cluster: Any) -> Iterator[RayEngine]:
    """An engine for the tests that need no special one: its actors hold all CPUs until the last of these tests closes
    it.
    """
    engine = RayEngine(shards(), 1, address=cluster.address)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(cluster: Any) -> Iterator[RayEngine]:
    """An engine with a single actor for two tests; the second of them closes it."""
    engine = RayEngine(shards(), 1, workers=1, address=cluster.address)
    yield engine
    engine.close()


def idle_actor(about: Any) -> type:
    """Return a class whose actors only describe themselves: they load no project code, so they start quickly.

    It is created here so that Ray sends its code instead of importing this file.
    """

    class Idle:
        def __init__(self, data: Any, classes: Any) -> None: ...

        def about(self) -> Any:
            return about()

    return Idle


def of_actors(engine: RayEngine, what: str) -> list[Any]:
    """Return a property of the actors: `node_id` or `pid`."""
    import ray

    call = {"node_id": lambda _: ray.get_runtime_context().get_node_id(), "pid": lambda _: os.getpid()}[what]
    found: list[Any] = ray.get([thread._actor._actor.__ray_call__.remote(call) for thread in engine._threads])
    return found


def connected() -> bool:
    import ray

    return bool(ray.is_initialized())


def started(engine: RayEngine, number: int) -> list[Any]:
    """Start `number` visits that do not end by themselves."""
    blobs = MemoryBlobs()
    futures = [engine.start("dev-0", f"long {each}", long_visit(blobs), blobs) for each in range(number)]
    wait_until(lambda: all(future.running() for future in futures), f"{number} visits that are under way")
    return futures


def is_dead(actor: Any) -> bool:
    """Return whether the cluster knows that an actor has ended: `ray.kill` returns earlier."""
    import ray

    try:
        ray.get(actor.about.remote())
    except ray.exceptions.ActorDiedError:
        return True
    return False


def test_two_nodes_give_the_bits_of_the_serial_engine(engine: RayEngine) -> None:
    assert len(set(of_actors(engine, "node_id"))) == 2
    assert engine.where.startswith("2 actors on 2 machines of the cluster at 127.0.0.1:")
    serial = SerialEngine(shards())
    for kind in KINDS:
        for ours, theirs in zip(train(engine, kind, DEVICES), train(serial, kind, DEVICES), strict=True):
            assert_same(ours, theirs)


def test_warm_up_empty_devices_and_missing_blobs(engine: RayEngine) -> None:
    assert_warms_and_refuses(engine)
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    gone = engine.start("dev-0", "c", visit("dyn", blobs, 99), MemoryBlobs()).result()
    assert isinstance(gone.event, WorkFailed)
    assert isinstance(engine.start("dev-0", "d", work, blobs).result().event, WorkDone)


def test_killed_actor_fails_its_visit_and_is_replaced(engine: RayEngine) -> None:
    before = of_actors(engine, "pid")
    futures = started(engine, 2)
    for process in before:
        os.kill(process, signal.SIGKILL)
    for number, future in enumerate(futures):
        assert future.result().event == WorkFailed(
            f"long {number}", "failed", "the actor that trained it died (ActorDiedError)"
        )
    blobs = MemoryBlobs()
    after = engine.start("dev-0", "visit 0", visit("sgd", blobs), blobs).result()
    assert_same(result(after), train(SerialEngine(shards()), "sgd")[0])
    assert set(of_actors(engine, "pid")).isdisjoint(before)


def test_both_nodes_train_in_parallel_until_closed(engine: RayEngine) -> None:
    # Neither visit ends, so the two are on two actors, and those are on two nodes.
    first, second = started(engine, 2)
    blobs = MemoryBlobs()
    third = engine.start("dev-1", "third", visit("sgd", blobs), blobs)
    assert (first.running(), second.running(), third.running()) == (True, True, False)
    engine.close()
    assert [isinstance(future.result().event, WorkFailed) for future in (first, second)] == [True, True]
    assert third.cancelled()
    assert not connected()


def test_blobs_known_to_an_actor_are_not_sent_again(alone: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    refs = ray_engine._StoredBlobs.refs

    def counted(stored: Any, blobs: Any) -> Any:
        sent.append(len(blobs))
        return refs(stored, blobs)

    monkeypatch.setattr(ray_engine._StoredBlobs, "refs", counted)
    first = train(alone, "dyn")[0]
    train(alone, "dyn")
    assert sent == [3, 0]  # kit, model, memory
    monkeypatch.setattr(visit_queue, "CACHE", 0)
    train(alone, "sgd")
    assert_same(train(alone, "dyn")[0], first)
    assert sent[2:] == [0, 1]  # the memory


def test_visits_fail_while_no_actor_can_start(alone: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    (thread,) = alone._threads
    nowhere = ray.remote(num_cpus=1, resources={"nowhere": 1})(RayVisitTrainer)
    monkeypatch.setattr(ray_engine, "START_TIMEOUT", 0.5)
    thread._make = lambda: ray_engine._Actor(ray, nowhere.remote((0, 0), ()), thread._actor._stored)
    thread._actor.kill()
    wait_until(lambda: is_dead(thread._actor._actor), "the death of the actor")
    blobs = MemoryBlobs()
    futures = [alone.start("dev-0", str(each), visit("sgd", blobs), blobs) for each in range(2)]
    first, second = (future.result().event for future in futures)
    assert first == WorkFailed("0", "failed", "the actor that trained it died (ActorDiedError)")
    why = "no actor can be started: no CPU of the Ray cluster was free for 0.5 s"
    assert second == WorkFailed("1", "failed", why)
    alone.close()


def test_cluster_simulation_equals_the_serial_one(cluster: Any, tmp_path: Path) -> None:
    models = {}
    for name, how in {"serial": {}, "ray": {"simulation.ray": cluster.address, "simulation.workers": 1}}.items():
        simulation = read_simulation(TEXT, "a test", {"simulation.engine": name, **how})
        assert read_simulation(simulation.text, "again").fleet == simulation.fleet
        running = SimulationRun(simulation, tmp_path / name)
        try:
            last = list(running.courses())[-1]
        finally:
            running.close()
        models[name] = [report.accuracy for report in last.history], running.fleet.job(running.name).vectors["model"]
        assert running.why.startswith(f"{name}, as configured")
    assert len(models["ray"][0]) == 2
    assert models["ray"] == models["serial"]


CUSTOM = """
import msgspec
from edge_agent.training.objectives import Plain


class Halved(msgspec.Struct):
    def begin(self, w_in, received, memory):
        return Halving()


class Halving(Plain):
    def direction(self, w, slope):
        loss, gradient = slope(w)
        return loss, gradient / 2
"""


def test_actors_find_a_custom_objective_in_the_working_folder(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halved.py").write_text(CUSTOM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    text = TEXT.replace("feddyn", "fedavg")
    custom: dict[str, Any] = {"objective.name": "halved:Halved", "rounds": 1}
    on_ray: dict[str, Any] = {"simulation.engine": "ray", "simulation.ray": cluster.address, "simulation.workers": 1}
    models = {}
    for name, changes in {"plain": {"rounds": 1}, "serial": custom, "ray": custom | on_ray}.items():
        running = SimulationRun(
            read_simulation(text, "a test", {"simulation.engine": "serial"} | changes), tmp_path / name
        )
        try:
            last = list(running.courses())[-1]
        finally:
            running.close()
        assert last.view.status == "done", last.view.detail
        models[name] = running.fleet.job(running.name).vectors["model"]
    sys.modules.pop("halved", None)
    assert models["ray"] == models["serial"]
    assert models["ray"] != models["plain"]


def test_machine_with_another_version_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = versions()
    theirs = ours | {"onnxruntime": "1.0.0"}
    monkeypatch.setattr(ray_engine, "RayVisitTrainer", idle_actor(lambda: ("elsewhere", theirs)))
    words = rf"'elsewhere' of the Ray cluster has onnxruntime 1.0.0 \({ours['onnxruntime']} here\): install the same"
    with pytest.raises(MachineError, match=words):
        RayEngine(shards(), 1, workers=1, address=cluster.address)
    assert not connected()


def test_machine_without_sojourn_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'sojourn'")

    monkeypatch.setattr(ray_engine, "RayVisitTrainer", idle_actor(missing))
    with pytest.raises(MachineError, match=r"cannot train: .*No module named 'sojourn'; is the same sojourn installed"):
        RayEngine(shards(), 1, workers=1, address=cluster.address)


@pytest.fixture
def others(cluster: Any) -> Iterator[Any]:
    """Create actors of another, already connected program, and wait for them."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield lambda: ray.remote(num_cpus=1)(idle_actor(lambda: "another program")).remote((0, 0), ())
    ray.shutdown()


def test_missing_free_cpu_is_an_error_and_actors_join_later(
    others: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    first, second = others(), others()
    ray.get([first.about.remote(), second.about.remote()])
    monkeypatch.setattr(ray_engine, "START_TIMEOUT", 1.0)
    with pytest.raises(MachineError, match="none of the 2 CPUs of the Ray cluster was free for 1 s"):
        RayEngine(shards(), 1)
    assert connected()  # the connection belonged to another program
    monkeypatch.setattr(ray_engine, "START_TIMEOUT", LIMIT)
    ray.kill(first)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 1, "a free CPU", ray.available_resources)
    engine = RayEngine(shards(), 1)
    try:
        assert "1 of 2 actors have started" in caplog.text
        (long,) = started(engine, 1)
        ray.kill(second)
        assert_same(train(engine, "sgd")[0], train(SerialEngine(shards()), "sgd")[0])
        assert long.running()
    finally:
        engine.close()


def test_dead_node_fails_its_visit_and_the_other_continues(cluster: Any) -> None:
    engine = RayEngine(shards(), 1, address=cluster.address)
    try:
        futures = started(engine, 2)
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: any(future.done() for future in futures), "the end of a visit on the node that died")
        (fallen,) = (future for future in futures if future.done())
        event = fallen.result().event
        assert isinstance(event, WorkFailed)
        assert event.reason == "failed"
        assert "the actor that trained it died" in event.detail
        cluster.add_node(**NODE)
        assert_same(train(engine, "sgd")[0], train(SerialEngine(shards()), "sgd")[0])
    finally:
        engine.close()


def test_wrong_address_is_reported_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "CONNECT_TIMEOUT", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"no Ray cluster answers at {address}: .*refused"):
            ray_engine.join_cluster(address, 1, 0)
        silent.listen()
        with pytest.raises(MachineError, match=f"no Ray cluster answers at {address}: timed out"):
            ray_engine.join_cluster(address, 1, 0)
    for wrong in ("somewhere", "127.0.0.1:", "127.0.0.1:x"):
        with pytest.raises(ConfigError, match="write host:port"):
            ray_engine.join_cluster(wrong, 1, 0)
    with pytest.raises(ConfigError, match="Ray's client is not supported"):
        ray_engine.join_cluster("ray://127.0.0.1:10001", 1, 0)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere")
    for unsaid in ("", "auto"):
        with pytest.raises(ConfigError, match="'elsewhere': write host:port"):
            ray_engine.join_cluster(unsaid, 1, 0)


def test_listener_that_is_not_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as caller:
                caller.recv(64)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        monkeypatch.setattr(ray_engine, "CONNECT_TIMEOUT", LIMIT)
        threading.Thread(target=answer, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"the server at {place} is not a Ray cluster"):
            ray_engine.join_cluster(place, 1, 0)


def test_ray_is_picked_by_settings_and_not_by_environment() -> None:
    plain: dict[str, Any] = {"engine": "auto", "trainer": "onnx", "device": "auto", "workers": 0, "size": 10}
    has = Hardware(4, cluster="10.0.0.1:6379")
    made = pick(**plain, has=has)
    assert made.engine == "pool"
    assert made.why.endswith("(RAY_ADDRESS names a cluster at 10.0.0.1:6379, which --engine ray would use)")
    assert pick(**plain, has=has, ray="auto").engine == "ray"
    assert pick(**plain | {"engine": "serial"}, has=has, ray="auto").engine == "serial"
    assert pick(**plain | {"engine": "ray", "workers": 3}, has=has).workers == 3
    for asked in ({"engine": "ray"}, {}):
        with pytest.raises(ConfigError, match="ray runs the devices' own trainer"):
            pick(**plain | asked | {"trainer": "torch"}, has=has, ray="auto")


def test_missing_ray_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match=r"needs ray, which is not installed: install .* pip install '\.\[ray\]'"):
        choose(shards(), engine="ray")


def test_ray_folder_is_created_and_unusable_one_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "not" / "there" / "yet"))
    assert Path(ray_engine._local_folder()).parent == tmp_path / "not" / "there" / "yet"
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(MachineError, match=r"Ray cannot write to '.*file': .* set RAY_TM"):
        ray_engine._local_folder()


def test_local_cluster_stays_on_loopback_and_ends_with_its_run() -> None:
    script = f"""
import contextlib, os, psutil
from fleet_sim.engines import choose, ray_engine
from tests.fleet_sim.engines.shares import shards, train
ray_engine.START_TIMEOUT = {LIMIT}
ray_engine._ray(local=True)
{SLOW_CLOCK}
engine, why = choose(shards(), engine="ray", workers=1)
folder = engine._cluster.folder
try:
    train(engine, "sgd")
    raise KeyboardInterrupt
except KeyboardInterrupt:
    family = psutil.Process().children(recursive=True)
    listening = set()
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            listening |= {{c.laddr.ip for c in each.net_connections("tcp") if c.status == "LISTEN"}}
finally:
    engine.close()
_, left = psutil.wait_procs(family, timeout={LIMIT})
print(why, *sorted(listening), os.path.exists(folder), [each for each in left if each.status() != "zombie"], sep="|")
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="own-", dir="/tmp") as folder:
        env["RAY_TMPDIR"] = f"{folder}/new"  # one that has not started yet
        env |= START
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT, env=env
        )
    why, *listening, folder, left = done.stdout.strip().split("|")
    assert why == "ray, as configured: 1 actor on a cluster on this machine"
    assert {place.removeprefix("::ffff:") for place in listening} == {"127.0.0.1"}
    assert (folder, left) == ("False", "[]")
    assert "Traceback" not in done.stderr
