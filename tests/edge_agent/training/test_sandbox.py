"""The sandbox: real processes that try to escape from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edge_agent.limits import Limits, LimitSettings
from edge_agent.training import kernel_sandbox
from edge_agent.training.custom_objectives import check
from edge_agent.training.messages import Train, Trained, Warm
from edge_agent.training.process import FOLDER, TrainingProcess
from edge_agent.training.sandbox import SandboxReport, exposed
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.processes import filtered_environment
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import ref_of
from tests.edge_agent.training.kits import compiled, visit_for, write_data
from tests.edge_agent.training.test_process import Office

if TYPE_CHECKING:
    from collections.abc import Iterator

PRISONER = """
import ctypes, json, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from edge_agent.training.sandbox import enter_sandbox

allowed, secret, own, parent = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
report = enter_sandbox([Path(allowed)], [Path(own)])

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)

def thread():
    started = threading.Thread(target=int)
    started.start()
    started.join()

def connect(kind):
    with socket.socket(kind, socket.SOCK_STREAM):
        pass

def limits_of_parent():
    import resource
    resource.prlimit(parent, resource.RLIMIT_NOFILE)

def ring():
    if ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(256)) < 0:
        raise OSError(ctypes.get_errno(), "io_uring")

def core():
    import resource
    return resource.getrlimit(resource.RLIMIT_CORE)

tries = {
    "read what is allowed": lambda: Path(allowed).read_bytes(),
    "write its own": lambda: (Path(own) / "new").write_bytes(b"1"),
    "replace its own": lambda: (Path(own) / "new").replace(Path(own) / "newer"),
    "delete its own": lambda: (Path(own) / "newer").unlink(),
    "a thread": thread,
    "a library": lambda: __import__("onnxruntime"),
    "read a secret": lambda: Path(secret).read_bytes(),
    "list the secret's folder": lambda: os.listdir(Path(secret).parent),
    "write a secret": lambda: Path(secret).write_bytes(b"1"),
    "delete a secret": lambda: Path(secret).unlink(),
    "its mode": lambda: os.chmod(secret, 0o777),
    "its time": lambda: os.utime(secret),
    "link to it": lambda: os.link(secret, Path(own) / "link"),
    "write what is allowed": lambda: Path(allowed).write_bytes(b"1"),
    "the parent's memory": lambda: open(f"/proc/{parent}/mem", "rb"),
    "the parent's environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
    "passwords of the system": lambda: Path("/etc/passwd").read_bytes(),
    "internet": lambda: connect(socket.AF_INET),
    "sockets here": lambda: connect(socket.AF_UNIX),
    "a program": lambda: subprocess.run(["/bin/true"], check=True),
    "to become a program": lambda: os.execv("/bin/true", ["true"]),
    "a process": fork,
    "a signal to the parent": lambda: os.kill(parent, 0),
    "a ring": ring,
    "limits of the parent": limits_of_parent,
}
found = {}
for what, attempt in tries.items():
    try:
        attempt()
        found[what] = "done"
    except OSError as error:
        found[what] = type(error).__name__
print(json.dumps([found, core(), report.closed, report.open]))
"""
FREE = {
    "read what is allowed", "write its own", "replace its own", "delete its own", "a thread", "a library",
}  # fmt: skip
FILES = {
    "read a secret", "list the secret's folder", "write a secret", "delete a secret", "link to it",
    "write what is allowed", "the parent's memory", "the parent's environment", "passwords of the system",
}  # fmt: skip


def imprisoned(tmp_path: Path) -> tuple[dict[str, str], Any, list[str], list[str]]:
    (tmp_path / "data").write_bytes(b"data")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "secret").write_bytes(b"secret")
    (tmp_path / "own").mkdir()
    paths = [str(tmp_path / "data"), str(tmp_path / "keys" / "secret"), str(tmp_path / "own")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRISONER, *paths, str(os.getpid())],
        capture_output=True, text=True, check=False, env=filtered_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, core, closed, left = json.loads(done.stdout)
    return found, core, closed, left


def test_code_in_the_sandbox_cannot_get_out(tmp_path: Path) -> None:
    found, core, closed, left = imprisoned(tmp_path)
    free = FREE if kernel_sandbox.version() else FREE | FILES  # an old kernel cannot block them
    assert {what for what, how in found.items() if how == "done"} == free
    refused = {what: how for what, how in found.items() if what not in free}
    assert refused.pop("link to it", "OSError") == "OSError"  # as if it were on another disk
    assert set(refused.values()) == {"PermissionError"}
    assert core == [0, 0]
    words = [each.partition(" (")[0] for each in (*closed, *left)]
    if kernel_sandbox.version():
        assert not left
        assert words == ["all other files", "network, programs and other processes"]
        assert (tmp_path / "keys" / "secret").read_bytes() == b"secret"
    else:
        assert words == ["network, programs and other processes", "the files that its user can read"]


def test_syscall_numbers_cover_both_architectures() -> None:
    assert kernel_sandbox.FORBIDDEN["socket"] == (41, 198)
    assert kernel_sandbox.FORBIDDEN["execve"] == (59, 221)
    assert kernel_sandbox.FORBIDDEN["fork"] == (57, None)
    for column in (0, 1):
        known = [each[column] for each in kernel_sandbox.FORBIDDEN.values() if each[column] is not None]
        assert len(set(known)) == len(known)


def test_missing_system_protection_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = TrainingProcess(tmp_path / "blobs", Office(tmp_path).data)
    report = SandboxReport(("network",), ("the files that its user can read",))
    for _ in range(3):
        workers._note_sandbox(report)
    assert [record.message for record in caplog.records] == [
        "the training process is sandboxed; blocked: network; not blocked: the files that its user can read"
    ]


def test_agent_files_readable_by_training_are_found(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    inside, outside = tmp_path / "images" / "key.pem", tmp_path / "key.pem"
    for path in (inside, outside):
        path.write_bytes(b"key")
    assert exposed([inside, outside, tmp_path / "nothing"], [tmp_path / "images"]) == [(inside, tmp_path / "images")]


def test_worker_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["here", "/there"]))
    kept = filtered_environment()
    assert not {"AWS_SECRET_ACCESS_KEY", "NOTIFY_SOCKET"} & kept.keys()
    assert kept["PYTHONPATH"].split(os.pathsep)[1:] == [str(Path.cwd() / "here"), "/there"]
    assert kept["PATH"] == os.environ["PATH"]


def with_train(graph: ModelProto) -> Kit:
    return msgspec.structs.replace(compiled().kit, train=graph.SerializeToString())


def thief(secret: Path) -> Kit:
    """Return a kit whose gradient contains a file of the device instead of a constant."""
    graph = ModelProto.FromString(compiled().kit.train)
    tensor = helper.make_tensor("stolen", TensorProto.FLOAT, [1], [0.0])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(secret))
    graph.graph.initializer.append(tensor)
    return with_train(graph)


def endless() -> Kit:
    """Return a kit whose training graph runs loops of constant length almost forever."""
    graph = ModelProto.FromString(compiled().kit.train)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("MatMul", ["carried", "big"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [600, 600]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [600, 600]),
        ],
    )
    loss = next(node for node in graph.graph.node if "loss" in node.output)
    loss.output[:] = ["own_loss" if name == "loss" else name for name in loss.output]
    graph.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(10_000, np.int64), "rounds"),
            numpy_helper.from_array(np.array([600, 600], np.int64), "shape"),
            numpy_helper.from_array(np.array(0, np.float32), "nothing"),
        ]
    )
    # Depends on the loss, so that no optimiser computes it in advance.
    graph.graph.node.extend(
        [
            helper.make_node("Mul", ["own_loss", "nothing"], ["none"]),
            helper.make_node("Expand", ["none", "shape"], ["big"]),
            helper.make_node("Loop", ["rounds", "", "big"], ["after"], body=body),
            helper.make_node("ReduceSum", ["after"], ["sum"], keepdims=0),
            helper.make_node("Add", ["own_loss", "sum"], ["loss"]),
        ]
    )
    return with_train(graph)


class Prison(Office):
    """A training process that receives malicious kits."""

    def crafted(self, kit: Kit) -> Train:
        data, work = pack_blob(kit), visit_for(self.blobs)
        ref = ref_of(data)
        self.blobs.put(data, ref.digest)
        return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, kit=ref))

    def allow(self, **limits: float) -> None:
        self.workers._bounds = LimitSettings(**limits)  # type: ignore[arg-type]


@pytest.fixture
def prison(tmp_path: Path) -> Iterator[Prison]:
    made = Prison(tmp_path)
    yield made
    made.workers.close()


def test_kit_with_external_file_is_declined_before_next_visit(prison: Prison, tmp_path) -> None:
    (tmp_path / "secret").write_bytes(b"secret" * 10)
    prison.workers.start("thief", prison.crafted(thief(tmp_path / "secret")), prison.received.put)
    outcome = prison.outcome()
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "unsupported"
    assert "initializer 'stolen' has its data in another file" in outcome.detail
    pid = prison.pid()
    prison.train("honest")
    assert isinstance(prison.outcome(), WorkDone)
    assert prison.pid() == pid
    assert list((tmp_path / FOLDER).iterdir()) == []
    assert Path(f"/proc/{pid}/cwd").resolve() == tmp_path / FOLDER


def test_endless_warm_up_times_out_and_next_visit_trains(prison: Prison) -> None:
    work = prison.crafted(endless())
    prison.allow(warm_up_seconds=1.0)
    prison.workers.start("warm", Warm(work.visit.kit, work.visit.task), prison.received.put)
    assert prison.outcome() == WorkFailed(
        "warm", "runtime", "loading graphs and data took longer than 1 s (limits.warm_up_seconds)"
    )
    prison.allow()
    prison.train("honest")
    assert isinstance(prison.outcome(), WorkDone)


def test_training_does_not_wait_for_another_kits_warm_up(prison: Prison) -> None:
    work = prison.crafted(endless())
    prison.workers.start("warm", Warm(work.visit.kit, work.visit.task), prison.received.put)
    prison.train("honest")
    outcome = prison.outcome()
    assert isinstance(outcome, WorkDone)
    assert outcome.key == "honest"


def test_overlong_visit_times_out(prison: Prison) -> None:
    prison.begin_endless("long")
    prison.allow(visit_seconds=1.0)
    outcome = prison.outcome()
    # The limit is checked when the worker reports progress, which it does often.
    assert outcome == WorkFailed("long", "runtime", "the visit took longer than 1 s (limits.visit_seconds)")
    prison.allow()
    prison.train("honest")
    assert isinstance(prison.outcome(), WorkDone)


def test_replaced_data_is_read_by_a_new_worker(prison: Prison, tmp_path: Path) -> None:
    prison.train("first")
    assert isinstance(prison.outcome(), WorkDone)
    pid = prison.pid()
    write_data(tmp_path / "new.npz", samples=20)
    (tmp_path / "new.npz").replace(tmp_path / "data.npz")
    prison.train("second")
    outcome = prison.outcome()
    assert isinstance(outcome, WorkDone)
    assert isinstance(outcome.outcome, Trained)
    assert outcome.outcome.samples == 20
    assert prison.pid() != pid


OBJECTIVE = """
from pathlib import Path
NUMBER = float((Path(__file__).parent / "number.txt").read_text())
class Own:
    @staticmethod
    def begin(*given): ...
"""


def test_custom_objective_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an editable install: Python finds the module, but not on its path."""
    (tmp_path / "finder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_parts.py").write_text(OBJECTIVE)
    (tmp_path / "elsewhere" / "number.txt").write_text("1")
    (tmp_path / "finder" / "shim_parts.py").write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere')!r}); from own_parts import Own; sys.path.pop(0)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "finder"))
    assert check(["shim_parts:Own"]) == (str(tmp_path / "elsewhere"),)


def test_time_limits_need_no_readings(tmp_path: Path) -> None:
    assert Limits(LimitSettings(warm_up_seconds=5, visit_seconds=5, readable=("/srv",)), tmp_path).idle
    assert not Limits(LimitSettings(battery=5), tmp_path).idle
