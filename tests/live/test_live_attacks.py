"""Malicious members over a real Mosquitto: every other role continues, restarts, and logs what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import numpy as np
import onnx
import pytest

from coordinator.rounds.preparing import KitCache, PrepareJob, prepare
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import ABILITIES
from sojourn.store.memory_blobs import MemoryBlobs
from tests.live.bad_member import BadMember
from tests.live.live_fleet import FLEET, LiveFleet, job_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HONEST = ["pi-1", "pi-2", "pi-3"]
BAD_DEVICE, BAD_SITE = "pi-9", "edge-9"
INVENTED = "pi-8"
OFFER = {
    "version": "1.0.0\x1b[2J", "machine": "x86_64", "runtime": "1.31", "threads": 1, "memory": 1 << 30,
    "objectives": ["sgd"], "data": "[red]none[/red]", "abilities": ABILITIES,
}  # fmt: skip
RETRIES = 3
SHORT = f"[tours]\nlease = 20.0\ndeadline = 60.0\non_lost_visit = 'retry'\nretries = {RETRIES}\n"
"""A lease that does not cost much time. An honest device that misses it on a busy machine is asked again."""
ESCAPE = "\x1b]0;owned\x07 [bold]is this a title?[/bold]\n2026-01-01 error pi-1 is on fire"
MOST = 1 << 40
"""The largest count that is accepted."""


class AttackedFleet(LiveFleet):
    """A fleet in which the processes of bad members are not started: the test plays them."""

    def start(self, name: str) -> None:
        if name in (BAD_DEVICE, INVENTED, BAD_SITE):
            (self.folder / f"{name}.log").touch()
        else:
            super().start(name)


@pytest.fixture
def fleet(tmp_path) -> Iterator[LiveFleet]:
    """An edge server with three honest devices, and the names of two bad devices and a bad edge server."""
    live = AttackedFleet(tmp_path, {"edge-1": [*HONEST, BAD_DEVICE, INVENTED], BAD_SITE: []}, own_brokers=False)
    for name in ("cloud", "edge-1", *HONEST):
        live.wait_for(name, "connected")
    yield live
    live.stop()


def job(name: str, devices: int, rounds: int = 1) -> str:
    text = job_text(name, rounds, devices=devices)
    return text.replace("sets = 2", "sets = 1").replace("size = 2", f"size = {devices}")


def check_all_start_again(fleet: LiveFleet) -> None:
    """Check that no node crashed, no terminal was written to, and after kill -9 of all nodes an honest job ends."""
    for name in fleet.processes:
        fleet.kill(name)
        assert "Traceback" not in fleet.log(name)
        assert "\x1b" not in fleet.log(name)
    for name in list(fleet.processes):
        fleet.start(name)
    view = fleet.run(job("afterwards", 3), "afterwards")
    assert (view.status, view.history[0].visits) == ("done", 3), view
    assert not any("Traceback" in fleet.log(name) for name in fleet.processes)


class BadDevice(BadMember):
    """Answers each visit with the next false result."""

    lies: list[Callable[[dict[str, Any]], None]]

    def begin(self) -> None:
        self.lies = [self.beyond_counting, self.most_there_is]  # the second is believed, and the estimation is over
        self.lies += [self.not_a_number, self.too_large, self.busy_for_ever, self.rude]  # one visit and its retries
        self.lies += [self.far_away]  # in the second round, when the usual norm is known
        self.on_message = self.answer
        self.born(offer=OFFER, wire=2)

    def answer(self, sender: str, message: dict[str, Any]) -> None:
        if message["kind"] == "visit" and message["visit"] not in self.answered:
            self.answered.append(message["visit"])
            (self.lies.pop(0) if self.lies else self.rude)(message)

    def __init__(self, *who: Any) -> None:
        self.answered: list[Any] = []
        super().__init__(*who)

    def model(self, message: dict[str, Any]) -> np.ndarray[Any, Any]:
        ref = message["vectors"]["model"]
        return np.frombuffer(ref.get("inline", bytes(ref["size"])), "<f4").copy()

    def visited(self, message: dict[str, Any], model: np.ndarray[Any, Any], samples: int, **metrics: float) -> None:
        data = model.astype("<f4").tobytes()
        ref = {**self.blob(data, "float32"), "inline": data}
        self.report("edge", "edge-1", "visited", visit=message["visit"], vectors={"model": ref}, samples=samples,
                 metrics=metrics, signature=None)  # fmt: skip

    def beyond_counting(self, message: dict[str, Any]) -> None:
        self.visited(message, self.model(message), (1 << 53) - 1, steps=1.0)

    def most_there_is(self, message: dict[str, Any]) -> None:
        self.visited(message, self.model(message) + 0.01, MOST, steps=1e30)

    def not_a_number(self, message: dict[str, Any]) -> None:
        self.visited(message, np.full_like(self.model(message), np.nan), 300)

    def far_away(self, message: dict[str, Any]) -> None:
        noise = np.random.default_rng(1).standard_normal(self.model(message).size)
        self.visited(message, self.model(message) - 1000 * noise, MOST, steps=1e38)

    def too_large(self, message: dict[str, Any]) -> None:
        ref = {"digest": bytes(32), "size": 1 << 39, "encoding": "float32"}
        self.report("edge", "edge-1", "visited", visit=message["visit"], vectors={"model": ref}, samples=1, metrics={})

    def busy_for_ever(self, message: dict[str, Any]) -> None:
        for step in range(3000):
            self.report("edge", "edge-1", "progress", visit=message["visit"], stage="training", step=step, steps=MOST)

    def rude(self, message: dict[str, Any]) -> None:
        self.report("edge", "edge-1", "declined", visit=message["visit"], reason="busy", detail=ESCAPE)


def test_lying_device_loses_only_its_own_hops(fleet: LiveFleet) -> None:
    with BadDevice(fleet.brokers["cloud"], FLEET, "device", BAD_DEVICE) as bad:
        bad.begin()
        fleet.wait_for("edge-1", f"device {BAD_DEVICE} is online")
        for _ in range(50):  # unexpected messages: results of others' visits, of no visit, retained
            unasked: dict[str, Any] = {"visit": ["job", 1, 1, 1, [1, 1]], "vectors": {}, "samples": 1, "metrics": {}}
            bad.report("edge", "edge-1", "visited", retain=True, **unasked)
            bad.report("edge", "edge-1", "tour", **unasked)
        view = fleet.run(job("job", 4, rounds=4) + SHORT, "job")
    fleet.wait_for("cloud", f"device {BAD_DEVICE} is offline")
    assert view.status == "done", view.detail
    assert not bad.lies
    assert min(report.visits for report in view.history) >= 3
    lines = [line for report in view.history for line in report.failures if line.startswith(BAD_DEVICE)]
    for words in ("not finite", "norm", f"{1 << 39} bytes", "busy"):
        assert any(words in line for line in lines), (words, lines)
    assert any("deadline" in line or "no sign of life" in line for line in lines), lines
    assert view.accuracy > 0.5, view.history
    check_all_start_again(fleet)


def test_lying_edge_server_loses_only_its_own_tours(fleet: LiveFleet) -> None:
    assert fleet.run(job("before", 3), "before").status == "done"  # the coordinator knows where the devices are
    with BadMember(fleet.brokers["cloud"], FLEET, "edge", BAD_SITE) as bad:

        def answer(_sender: str, message: dict[str, Any]) -> None:
            if message["kind"] == "tour":
                tour = message["tour"]
                bad.report("cloud", "cloud", "tour-progress", tour=tour, hop=0, hops=1, device=None, step=0, steps=0,
                        lost=0, traffic=(1 << 53) - 1)  # fmt: skip
                reports = bad.blob(msgpack.packb([{"device": "pi-1", "hop": 1 << 30, "status": "done"}] * 99))
                bad.report("cloud", "cloud", "toured", tour=tour, vectors={}, samples=MOST, reports=reports,
                        traffic=1 << 50)  # fmt: skip

        bad.on_message = answer
        bad.born(wire=2)
        offer = OFFER | {"version": "1.0.0", "data": ""}
        crowd = [[f"x-{number}", [1, bytes(8)], None] for number in range(20_000)]
        for revision, members in enumerate((crowd, [[name, [9, bytes(8)], offer] for name in ("pi-1", INVENTED)]), 1):
            bad.report("cloud", "cloud", "roster", revision=revision, members=bad.blob(msgpack.packb(members)))
        bad.wait("roster-seen", revision=2)
        for number in range(2000):
            bad.report("cloud", "cloud", "tour-progress", tour=["job", number, 1, 1], hop=0, hops=1, device=ESCAPE,
                    step=0, steps=0, lost=0, traffic=0)  # fmt: skip
        view = fleet.run(job("job", 3, rounds=2), "job")
        assert any(message["kind"] == "tour" for _, message in bad.received)
    fleet.wait_for("cloud", f"device {INVENTED} is offline")
    assert (view.status, [report.visits for report in view.history]) == ("done", [3, 3]), view
    check_all_start_again(fleet)


def test_server_graph_cannot_read_device_files_or_loop_forever(fleet: LiveFleet) -> None:
    blobs = MemoryBlobs()
    compiled = prepare(PrepareJob("job", job("job", 3)), blobs, KitCache())
    kit = unpack_blob(blobs.read(compiled.kit.digest), Kit)
    with BadMember(fleet.brokers["cloud"], FLEET, "edge", BAD_SITE) as bad:
        vector = bad.blob(bytes(4 * kit.model.size), "float32")
        task = {
            "kind": "train", "training": {}, "objective": {"name": "sgd"}, "encoding": "float32", "threads": 1,
            "estimator": None,
        }  # fmt: skip
        for number, (train, why) in enumerate(
            ((reading(kit.train, f"{fleet.folder}/pi-1.npz"), "in another file"), (endless(kit.train), "Loop")), 1
        ):
            ref = bad.blob(msgspec.msgpack.encode(msgspec.structs.replace(kit, train=train)))
            bad.report("device", "pi-1", "prepare", job="theirs", kit=ref, task=task)
            bad.report("device", "pi-1", "visit", visit=["theirs", number, 1, 0, [1, 1]], kit=ref,
                    vectors={"model": vector}, task=task, seed=1, lease=60.0, earlier=0)  # fmt: skip
            declined = bad.wait("declined", number)
            assert why in declined["detail"], declined
        assert not any(message["kind"] == "visited" for _, message in bad.received)
    check_all_start_again(fleet)


def reading(graph: bytes, path: str) -> bytes:
    """Return the graph with an initializer in another file."""
    model = onnx.load_from_string(graph)
    tensor = onnx.numpy_helper.from_array(np.zeros(64, np.uint8), "theirs")
    onnx.external_data_helper.set_external_data(tensor, path)
    tensor.ClearField("raw_data")
    model.graph.initializer.append(tensor)
    return bytes(model.SerializeToString())


def endless(graph: bytes) -> bytes:
    """Return the graph with a loop that runs longer than any timeout."""
    model = onnx.load_from_string(graph)
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            onnx.helper.make_tensor_value_info("at", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        ],
        [onnx.helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, [])],
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 << 60), "trips"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.append(onnx.helper.make_node("Loop", ["trips", "always"], [], body=body))
    return bytes(model.SerializeToString())
