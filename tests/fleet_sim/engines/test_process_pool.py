"""The process pool: the serial engine's bits from several processes, of which each may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet_sim.engines import ProcessPoolEngine, SerialEngine, process_pool, visit_queue
from fleet_sim.engines.frames import VisitRequest
from fleet_sim.engines.visit_queue import QueuedVisit
from sojourn.node.machine import Did, DidNot
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

if TYPE_CHECKING:
    from collections.abc import Iterator


DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessPoolEngine]:
    engine = ProcessPoolEngine(shards(), 2)
    yield engine
    engine.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")  # where nobody buries an orphan, it stays as a zombie
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("kind", KINDS)
def test_the_pool_gives_the_bits_of_the_serial_engine(engine: ProcessPoolEngine, kind: str) -> None:
    for ours, theirs in zip(train(engine, kind, DEVICES), train(SerialEngine(shards()), kind, DEVICES), strict=True):
        assert_same(ours, theirs)


def test_warming_and_devices_without_data(engine: ProcessPoolEngine) -> None:
    assert_warms_and_refuses(engine)


def test_what_is_gone_fails_its_visit_and_no_other(engine: ProcessPoolEngine) -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    kept = MemoryBlobs()
    kept.put(blobs.read(work.visit.kit.digest))
    train(engine, "sgd")
    before = engine.processes
    gone = [engine.start("dev-0", "a", work, kept), engine.start("dev-0", "b", work, MemoryBlobs())]
    assert all(isinstance(future.result().event, DidNot) for future in gone)
    assert isinstance(engine.start("dev-0", "c", work, blobs).result().event, Did)
    assert engine.processes == before


def test_blobs_that_a_worker_has_are_not_sent_again_until_it_lets_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    forgotten: list[int] = []
    request = QueuedVisit.request

    def watched(visit: QueuedVisit, blobs: dict[bytes, bytes], *rest: tuple[bytes, ...]) -> VisitRequest:
        sent.append(len(blobs))
        forgotten.append(len(rest[0]))
        return request(visit, blobs, *rest)

    monkeypatch.setattr(QueuedVisit, "request", watched)
    alone = ProcessPoolEngine(shards(), 1)
    try:
        first = train(alone, "dyn")[0]
        train(alone, "dyn")
        assert sent == [3, 0]  # kit, model, memory
        monkeypatch.setattr(visit_queue, "CACHE", 0)
        train(alone, "sgd")
        assert sent[2:] == [0]
        assert forgotten == [0, 0, 1]  # the memory
        assert_same(train(alone, "dyn")[0], first)
        assert sent[3:] == [1]
    finally:
        alone.close()


def test_a_worker_that_is_killed_fails_its_visit_and_is_replaced() -> None:
    engine = ProcessPoolEngine(shards(), 1)
    try:
        train(engine, "sgd")
        (before,) = engine.processes
        blobs = MemoryBlobs()
        under_way = engine.start("dev-0", "long", long_visit(blobs), blobs)
        waiting = engine.start("dev-1", "short", visit("sgd", blobs, 12), blobs)
        while not under_way.running():
            time.sleep(0.01)
        os.kill(before, signal.SIGKILL)
        assert under_way.result().event == DidNot("long", "failed", "the worker that trained it died (-9)")
        assert_same(result(waiting.result()), train(SerialEngine(shards()), "sgd", ("dev-0", "dev-1"))[1])
        assert engine.processes != [before]
        assert not alive(before)
    finally:
        engine.close()


def test_closing_ends_processes_and_all_that_waits() -> None:
    engine = ProcessPoolEngine(shards(), 2)
    descriptor = engine._data.descriptor
    assert engine.processes == []  # none before there is work
    blobs = MemoryBlobs()
    futures = [engine.start("dev-0", str(number), long_visit(blobs), blobs) for number in range(4)]
    while len(processes := engine.processes) < 2:
        time.sleep(0.01)
    engine.close()
    assert [isinstance(future.result().event, DidNot) for future in futures[:2]] == [True, True]
    assert [future.cancelled() for future in futures[2:]] == [True, True]
    assert not any(map(alive, processes))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    engine.close()  # once more does no harm


def test_a_worker_that_cannot_be_started_fails_its_visit_until_one_can(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, blobs, started = ProcessPoolEngine(shards(), 1), MemoryBlobs(), process_pool._Worker

    def refused(*_: object) -> process_pool._Worker:
        raise BlockingIOError("no more processes")

    try:
        monkeypatch.setattr(process_pool, "_Worker", refused)
        event = engine.start("dev-0", "a", visit("sgd", blobs), blobs).result().event
        assert event == DidNot("a", "failed", "no worker can be started: no more processes")
        monkeypatch.setattr(process_pool, "_Worker", started)
        assert isinstance(engine.start("dev-0", "b", visit("sgd", blobs), blobs).result().event, Did)
    finally:
        engine.close()


def test_workers_end_with_a_process_that_crashes() -> None:
    script = (
        "import os, sys; from tests.fleet_sim.engines.shares import shards\n"
        "from fleet_sim.engines import ProcessPoolEngine\n"
        "engine = ProcessPoolEngine(shards(), 2)\nfor thread in engine._threads:\n    thread._at_work()\n"
        "print(*engine.processes, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    processes = [int(word) for word in done.stdout.split()]
    assert len(processes) == 2
    until = time.monotonic() + 60
    while any(map(alive, processes)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_shared_data_set_is_the_same_and_cannot_be_written(engine: ProcessPoolEngine) -> None:
    np.testing.assert_array_equal(engine.shards.x, shards().x)
    np.testing.assert_array_equal(engine.shards.y, shards().y)
    assert engine.shards.x.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        engine.shards.x[0] = 0
