"""The process pool: the serial engine's bits from several processes, each of which may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from fleet_sim.engines import ProcessPoolEngine, SerialEngine, process_pool, shared_memory
from fleet_sim.engines.shared_memory import PAGE, PlacedBlobs, slot_of
from fleet_sim.engines.visit_queue import VisitQueue
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.store.blobs import digest_of
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
from tests.processes import has_ended
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet_sim.engines.shared_memory import Slot

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessPoolEngine]:
    engine = ProcessPoolEngine(shards(), 2)
    yield engine
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_pool_gives_the_bits_of_the_serial_engine(engine: ProcessPoolEngine, kind: str) -> None:
    for ours, theirs in zip(train(engine, kind, DEVICES), train(SerialEngine(shards()), kind, DEVICES), strict=True):
        assert_same(ours, theirs)


def test_warm_up_works_and_devices_without_data_are_refused(engine: ProcessPoolEngine) -> None:
    assert_warms_and_refuses(engine)


def test_missing_blob_fails_only_its_own_visit(engine: ProcessPoolEngine) -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    kept = MemoryBlobs()
    kept.put(blobs.read(work.visit.kit.digest))
    train(engine, "sgd")
    before = engine.processes
    gone = [engine.start("dev-0", "a", work, kept), engine.start("dev-0", "b", work, MemoryBlobs())]
    assert all(isinstance(future.result().event, WorkFailed) for future in gone)
    assert isinstance(engine.start("dev-0", "c", work, blobs).result().event, WorkDone)
    assert set(before) <= set(engine.processes)  # the other one may have started only now


def test_blobs_are_written_once_for_all_workers_until_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = PlacedBlobs._written

    def watched(placed: PlacedBlobs, data: bytes) -> Slot | None:
        written.append(len(data))
        return write(placed, data)

    monkeypatch.setattr(PlacedBlobs, "_written", watched)
    engine = ProcessPoolEngine(shards(), 2)
    try:
        first = train(engine, "dyn")[0]
        assert len(written) == 3  # kit, model, memory
        train(engine, "dyn", ("dev-0", "dev-1", "dev-2"))
        assert len(written) == 5  # the memories of the others
        monkeypatch.setattr(shared_memory, "KEPT", 0)
        train(engine, "sgd")
        assert len(written) == 6  # the model, which was dropped when the kit was used
        assert_same(train(engine, "dyn")[0], first)
        assert len(written) == 9
    finally:
        engine.close()


def test_killed_worker_fails_its_visit_and_is_replaced() -> None:
    engine = ProcessPoolEngine(shards(), 1)
    try:
        train(engine, "sgd")
        (before,) = engine.processes
        blobs = MemoryBlobs()
        under_way = engine.start("dev-0", "long", long_visit(blobs), blobs)
        waiting = engine.start("dev-1", "short", visit("sgd", blobs, 12), blobs)
        wait_until(under_way.running, "a visit that is under way")
        os.kill(before, signal.SIGKILL)
        assert under_way.result().event == WorkFailed("long", "failed", "the worker that trained it died (-9)")
        assert_same(result(waiting.result()), train(SerialEngine(shards()), "sgd", ("dev-0", "dev-1"))[1])
        assert engine.processes != [before]
        assert has_ended(before)
    finally:
        engine.close()


def test_brief_visits_are_grouped_and_shared_evenly(engine: ProcessPoolEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    train(engine, "prox")  # from now on the duration of such visits is known
    monkeypatch.setattr(process_pool, "BRIEF_SECONDS", 60.0)
    blobs, before = MemoryBlobs(), replace(engine.spent)
    futures = [engine.start(device, device, visit("prox", blobs, 11 + at), blobs) for at, device in enumerate(DEVICES)]
    assert len(engine._queue._gathering) == 4
    ours = [result(future.result()) for future in futures]
    for mine, theirs in zip(ours, train(SerialEngine(shards()), "prox", DEVICES), strict=True):
        assert_same(mine, theirs)
    assert engine.spent.visits - before.visits == 4
    assert engine.spent.together - before.together == 4  # two and two
    assert engine.spent.training > before.training
    assert engine.spent.waiting > before.waiting


def test_enough_brief_visits_start_at_once(engine: ProcessPoolEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    train(engine, "prox")
    monkeypatch.setattr(process_pool, "BRIEF_SECONDS", 60.0)
    blobs = MemoryBlobs()
    work = visit("prox", blobs)
    futures = [engine.start("dev-0", str(at), work, blobs) for at in range(2 * process_pool.MAX_GROUP)]
    assert engine._queue._gathering == []
    digests = {future.result().event.outcome.vectors["model"].digest for future in futures}  # type: ignore[union-attr]
    assert len(digests) == 1


def test_visits_of_a_killed_worker_are_retried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, blobs = ProcessPoolEngine(shards(), 1), MemoryBlobs()
    try:
        train(engine, "sgd")
        monkeypatch.setattr(process_pool, "BRIEF_SECONDS", 60.0)
        (before,) = engine.processes
        os.kill(before, signal.SIGSTOP)  # so that they are running when it dies
        futures = [
            engine.start(device, device, visit("sgd", blobs, 11 + at), blobs) for at, device in enumerate(DEVICES)
        ]
        engine._queue.deal()
        wait_until(lambda: sum(future.running() for future in futures) == 2, "two visits that are under way")
        os.kill(before, signal.SIGKILL)
        ours = [result(future.result()) for future in futures]
        for mine, theirs in zip(ours, train(SerialEngine(shards()), "sgd", DEVICES), strict=True):
            assert_same(mine, theirs)
        assert engine.spent.visits == 5
        assert engine.spent.together == 2  # those of the other group
    finally:
        engine.close()


def test_results_stay_in_the_arena_until_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "SMALL", 0)
    monkeypatch.setattr(shared_memory, "KEPT", 0)
    engine = ProcessPoolEngine(shards(), 1)
    try:
        (expected,) = train(SerialEngine(shards()), "dyn")
        train(engine, "dyn")
        blobs, store = MemoryBlobs(), MemoryBlobs()
        outcome = engine.start("dev-0", "a", visit("dyn", blobs), blobs).result()
        assert_same(result(outcome), expected)
        views = list(outcome.blobs.values())
        assert [memoryview(view).readonly for view in views] == [True, True]
        assert [slot_of(view, engine._arena) is not None for view in views] == [True, True]
        for digest, content in outcome.blobs.items():
            store.put(content, digest)
            assert digest_of(content) == digest
        assert engine._arena.used == 2 * PAGE
        del outcome, views, content
        assert engine._arena.used == 2 * PAGE  # the store has them
        store.sweep(set())
        # The thread that set the result also references it, until it waits for the next visit.
        wait_until(lambda: engine._arena.used == 0, "an arena that is empty again", lambda: engine._arena.used)
    finally:
        engine.close()


def test_result_starts_the_next_visit_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SMALL", 0)
    engine, blobs = ProcessPoolEngine(shards(), 1), MemoryBlobs()
    try:
        train(engine, "sgd")
        work = visit("sgd", blobs)
        first = engine.start("dev-0", "a", work, blobs).result()
        assert isinstance(first.event, WorkDone)
        for digest, content in first.blobs.items():
            blobs.put(content, digest)
        monkeypatch.setattr(PlacedBlobs, "_written", lambda *_: pytest.fail("it is there already"))
        second = msgspec.structs.replace(work.visit, vectors=first.event.outcome.vectors)
        hop = engine.start("dev-1", "b", msgspec.structs.replace(work, visit=second), blobs).result()
        alone = SerialEngine(shards()).start("dev-1", "b", msgspec.structs.replace(work, visit=second), blobs).result()
        assert_same(result(hop), result(alone))
    finally:
        engine.close()


def test_blobs_are_sent_when_the_arena_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SMALL", 0)
    monkeypatch.setattr(process_pool, "arena_limit", lambda: 1)
    engine = ProcessPoolEngine(shards(), 1)
    try:
        for _ in range(2):
            assert_same(train(engine, "dyn")[0], train(SerialEngine(shards()), "dyn")[0])
    finally:
        engine.close()


def test_closing_ends_processes_and_waiting_visits() -> None:
    engine = ProcessPoolEngine(shards(), 2)
    descriptor = engine._data.descriptor
    assert engine.processes == []  # none before there is work
    blobs = MemoryBlobs()
    futures = [engine.start("dev-0", str(number), long_visit(blobs), blobs) for number in range(4)]
    wait_until(lambda: len(engine.processes) == 2, "two workers")
    processes = engine.processes
    engine.close()
    assert [isinstance(future.result().event, WorkFailed) for future in futures[:2]] == [True, True]
    assert [future.cancelled() for future in futures[2:]] == [True, True]
    assert all(map(has_ended, processes))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    engine.close()  # closing twice does no harm


class TakenQueue(SimpleQueue[Any]):
    """A queue whose last visit another thread takes right after a check for it."""

    def empty(self) -> bool:
        return False


def test_closing_does_not_wait_for_a_visit_being_taken() -> None:
    queue = VisitQueue(1, 1)
    queue._waiting = TakenQueue()
    closing = threading.Thread(target=queue.close, args=([],), daemon=True)
    closing.start()
    closing.join(LIMIT)
    assert not closing.is_alive()


def test_unstartable_worker_fails_visits_until_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, blobs, started = ProcessPoolEngine(shards(), 1), MemoryBlobs(), process_pool._Worker

    def refused(*_: object) -> process_pool._Worker:
        raise BlockingIOError("no more processes")

    try:
        monkeypatch.setattr(process_pool, "_Worker", refused)
        event = engine.start("dev-0", "a", visit("sgd", blobs), blobs).result().event
        assert event == WorkFailed("a", "failed", "no worker can be started: no more processes")
        monkeypatch.setattr(process_pool, "_Worker", started)
        assert isinstance(engine.start("dev-0", "b", visit("sgd", blobs), blobs).result().event, WorkDone)
    finally:
        engine.close()


def test_workers_end_when_the_parent_crashes() -> None:
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
    wait_until(lambda: all(map(has_ended, processes)), "the end of all workers")


def test_shared_data_set_is_equal_and_read_only(engine: ProcessPoolEngine) -> None:
    np.testing.assert_array_equal(engine.shards.x, shards().x)
    np.testing.assert_array_equal(engine.shards.y, shards().y)
    assert engine.shards.x.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        engine.shards.x[0] = 0
