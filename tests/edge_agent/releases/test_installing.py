"""Installing: a trial in a real child process before the swap, and a clear error when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_agent.releases.installing import Installer, Trial, Tried
from edge_agent.releases.orders import Installed, Withdraw, Withdrawn
from edge_agent.releases.served import load
from edge_agent.releases.trial import tried
from sojourn.data.source import DataSettings
from sojourn.errors import MachineError, ModelError, StoreError
from sojourn.protocol.release import Health
from tests.edge_agent.releases.releases_made import CLASSES, LINE, Shop, card_of, graph_of, weights_of
from tests.there import there
from tests.waiting import LIMIT, wait_until


class Bench:
    """An installer with its releases and data: sample e_i is of class i, 10 of each."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder / "store")
        self.data = DataSettings(path=str(folder / "data.npz"))
        np.savez(self.data.path, x=np.tile(np.eye(3, dtype=np.float32), (10, 1)), y=np.tile(CLASSES, 10))
        self.installer = self.with_program("edge_agent.releases.trial_process")

    def with_program(self, program: str, timeout: float = LIMIT) -> Installer:
        return Installer(self.shop.store, self.shop.store / "blobs", self.data, timeout=timeout, program=program)

    def version(self) -> int:
        current = self.shop.folder.current()
        return 0 if current is None else current.version

    def health(self, *install: object, **more: object) -> Health:
        done = self.installer(self.shop.install(*install, **more))  # type: ignore[arg-type]
        assert isinstance(done, Installed)
        return done.health


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def quick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An installer that tries releases in this process, for tests without the child process."""
    monkeypatch.setattr(bench.installer, "_try", lambda trial, _turn: tried(trial))
    return bench


def test_trial_compares_release_with_previous_on_local_data(bench: Bench) -> None:
    first = bench.health(1)
    assert (first.rows, first.accuracy, first.pace_before) == (30, 1.0, None)
    assert first.pace is not None
    assert 0 < first.pace.median <= first.pace.p95
    # Samples of class 2 are classified as 0: two thirds are correct, and a third of the mix has moved.
    wrong = np.array([[1, 0, 0], [0, 1, 0], [2, 0, 1]], np.float32)
    second = bench.health(2, wrong)
    assert [second.accuracy, second.accuracy_before] == [pytest.approx(2 / 3), 1.0]
    assert second.drift == pytest.approx(1 / 3)
    assert second.pace_before is not None
    assert bench.version() == 2


def test_previously_served_release_is_swapped_without_trial(bench: Bench) -> None:
    bench.shop.serve(1)
    bench.shop.serve(2)
    done = bench.with_program("no.such.program")(bench.shop.install(1, known=True))
    assert done == Installed(Health())
    assert bench.version() == 1


def test_known_release_with_missing_files_is_tried_as_new(quick: Bench) -> None:
    quick.shop.serve(2)
    assert quick.health(1, known=True).rows == 30
    assert quick.version() == 1


def test_release_swapped_before_power_cut_is_compared_again(quick: Bench) -> None:
    quick.shop.serve(1)
    wrong = np.array([[1, 0, 0], [0, 1, 0], [2, 0, 1]], np.float32)
    asked = quick.health(2, wrong)
    again = quick.health(2, wrong)  # as after a power cut before the outcome was recorded
    assert (again.accuracy, again.accuracy_before, again.drift) == (asked.accuracy, asked.accuracy_before, asked.drift)
    assert quick.version() == 2
    assert there(quick.shop.folder.previous()).version == 1


def test_older_release_is_not_compared_with_its_successor(quick: Bench) -> None:
    quick.shop.serve(2)
    assert quick.health(1).pace_before is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"graph": b"no graph"}, "release 2 of animals is rejected: it is not an ONNX file"),
        ({"graph": graph_of(weights_of(3))}, "differ by up to 1 "),
        ({"card": card_of(2, line="plants")}, "release 2 of plants"),
    ],
)
def test_failed_trial_changes_nothing(quick: Bench, more: dict[str, object], message: str) -> None:
    before = quick.shop.serve(1)
    work = quick.shop.install(2, **more)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        quick.installer(msgspec.structs.replace(work, line=LINE))
    assert quick.shop.folder.current() == before
    assert {path.name for path in quick.shop.folder.path.iterdir()} == {"current", before.graph, before.card}


def test_withdrawal_serves_nothing(bench: Bench) -> None:
    bench.shop.serve(1)
    assert bench.installer(Withdraw(LINE)) == Withdrawn()
    assert bench.version() == 0


def test_missing_blobs_are_reported(bench: Bench) -> None:
    work = bench.shop.install(1)
    bench.shop.blobs.sweep(set())
    with pytest.raises(StoreError, match="is missing"):
        bench.installer(work)


@pytest.mark.parametrize(
    ("program", "timeout", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", LIMIT, "ended by signal 9"),
        ("import sys; sys.exit('out of luck')", LIMIT, "exit code 1; last output: out of luck"),
        ("print('hello')", LIMIT, "no reply: the process ended with exit code 0"),
        ("import time; time.sleep(3600)", 0.5, "did not end within 0.5 s"),
    ],
)
def test_dead_or_hanging_trial_process_is_a_clear_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, timeout: float, message: str
) -> None:
    (tmp_path / "odd_trial.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench.shop.serve(1)
    with pytest.raises(MachineError, match=message):
        bench.with_program("odd_trial", timeout)(bench.shop.install(2))
    assert bench.version() == 1


def test_library_prints_do_not_corrupt_the_trial_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chatty = "import os\nfrom edge_agent.releases import trial as t, trial_process\nold = t.tried\n"
    chatty += "t.tried = lambda trial: (print('noise', flush=True), os.write(1, b'noise'), old(trial))[2]\n"
    chatty += "trial_process.main()\n"
    (tmp_path / "chatty_trial.py").write_text(chatty)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = bench.with_program("chatty_trial")(bench.shop.install(1))
    assert isinstance(done, Installed)
    assert done.health.rows == 30


def test_newer_order_ends_the_trial_of_an_older_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "endless_trial.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench.shop.serve(1)
    installer, errors = bench.with_program("endless_trial"), list[str]()

    def install() -> None:
        try:
            installer(bench.shop.install(2))
        except MachineError as error:
            errors.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    wait_until(lambda: installer._trials, "a trial that is under way")
    installer(bench.shop.install(1, known=True))
    thread.join(LIMIT)
    assert errors == [f"a newer order on {LINE} replaced this one"]
    assert bench.version() == 1


def test_work_dropped_before_its_thread_ran_is_not_done(bench: Bench) -> None:
    bench.shop.serve(1)
    bench.shop.serve(2)
    for work in (bench.shop.install(3), bench.shop.install(1, known=True), Withdraw(LINE)):
        bench.installer.expect(work)
        bench.installer.drop(LINE)
        with pytest.raises(MachineError, match="a newer order"):
            bench.installer(work)
        assert bench.version() == 2


def test_order_arriving_just_after_a_trial_still_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(_trial: Trial, _turn: int) -> Tried:
        bench.installer.drop(LINE)
        return Tried(None, Health())

    monkeypatch.setattr(bench.installer, "_try", replaced)
    with pytest.raises(MachineError, match="a newer order"):
        bench.installer(bench.shop.install(1))
    assert bench.version() == 0


def test_installer_killed_at_any_time_leaves_a_working_current(bench: Bench) -> None:
    """A real process that swaps as fast as possible, killed repeatedly."""
    program = f"""
import sys, itertools, pathlib
from edge_agent.releases.installing import Installer
from sojourn.data.source import DataSettings
from tests.edge_agent.releases.releases_made import Shop
shop = Shop(pathlib.Path({str(bench.shop.store)!r}))
works = [shop.served(version) for version in range(1, 6)]
print("ready", flush=True)
for served in itertools.cycle(works):
    shop.folder.place(served, shop.store / "blobs")
    shop.folder.make_current(served)
"""
    bench.shop.serve(1)
    folder, seen = bench.shop.folder, set()
    for attempt in range(6):
        before = folder.identity()
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        if attempt > 2:  # the first attempts may be killed before the first swap
            wait_until(lambda before=before: folder.identity() != before, "another release")  # type: ignore[misc]
        time.sleep(0.003 + 0.0137 * attempt)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        for served in (bench.shop.folder.current(), bench.shop.folder.previous()):
            if served is not None:
                assert load(bench.shop.folder, served).card.version == served.version
                seen.add(served.version)
        assert bench.version() > 0
    assert len(seen) > 1
