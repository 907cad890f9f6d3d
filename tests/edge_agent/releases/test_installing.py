"""Installing: tried in a real child before anything is swapped, and nothing but a clear error when that fails."""

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
from edge_agent.releases.loading import load
from edge_agent.releases.trial import tried
from edge_agent.releases.work import Installed, Withdraw, Withdrawn
from sojourn.data.source import DataSettings
from sojourn.errors import MachineError, ModelError, StoreError
from sojourn.protocol.release import Health
from tests.edge_agent.releases.releases_made import CLASSES, LINE, Shop, card_of, graph_of, weights_of
from tests.there import there
from tests.waiting import LIMIT, wait_until


class Bench:
    """An installer with its shop and data: sample e_i is of class i, 10 of each."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder / "store")
        self.data = DataSettings(path=str(folder / "data.npz"))
        np.savez(self.data.path, x=np.tile(np.eye(3, dtype=np.float32), (10, 1)), y=np.tile(CLASSES, 10))
        self.installer = self.with_program("edge_agent.releases.trial_process")

    def with_program(self, program: str, patience: float = LIMIT) -> Installer:
        return Installer(self.shop.store, self.shop.store / "blobs", self.data, patience=patience, program=program)

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
    """An installer that tries releases in this process, for tests that are not about the child."""
    monkeypatch.setattr(bench.installer, "_try", lambda trial, _turn: tried(trial))
    return bench


def test_a_release_is_tried_on_the_devices_data_beside_the_one_before(bench: Bench) -> None:
    first = bench.health(1)
    assert (first.rows, first.accuracy, first.pace_before) == (30, 1.0, None)
    assert first.pace is not None
    assert 0 < first.pace.median <= first.pace.p95
    # Class 2's samples are taken for class 0: two thirds are right, and a third of the mix has moved.
    wrong = np.array([[1, 0, 0], [0, 1, 0], [2, 0, 1]], np.float32)
    second = bench.health(2, wrong)
    assert [second.accuracy, second.accuracy_before] == [pytest.approx(2 / 3), 1.0]
    assert second.drift == pytest.approx(1 / 3)
    assert second.pace_before is not None
    assert bench.version() == 2


def test_a_release_that_was_served_before_is_swapped_without_a_trial(bench: Bench) -> None:
    bench.shop.serve(1)
    bench.shop.serve(2)
    done = bench.with_program("no.such.program")(bench.shop.install(1, known=True))
    assert done == Installed(Health())
    assert bench.version() == 1


def test_a_known_release_whose_files_are_gone_is_tried_as_if_new(quick: Bench) -> None:
    quick.shop.serve(2)
    assert quick.health(1, known=True).rows == 30
    assert quick.version() == 1


def test_what_was_swapped_in_before_a_power_cut_is_measured_against_the_one_before(quick: Bench) -> None:
    quick.shop.serve(1)
    wrong = np.array([[1, 0, 0], [0, 1, 0], [2, 0, 1]], np.float32)
    asked = quick.health(2, wrong)
    again = quick.health(2, wrong)  # as an agent does that had no time to write down how it went
    assert (again.accuracy, again.accuracy_before, again.drift) == (asked.accuracy, asked.accuracy_before, asked.drift)
    assert quick.version() == 2
    assert there(quick.shop.folder.previous()).version == 1


def test_an_older_release_is_not_measured_against_what_it_replaces(quick: Bench) -> None:
    quick.shop.serve(2)
    assert quick.health(1).pace_before is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"graph": b"no graph"}, "release 2 of animals is refused: it is no ONNX file"),
        ({"graph": graph_of(weights_of(3))}, "differ here by up to 1 "),
        ({"card": card_of(2, line="plants")}, "release 2 of plants"),
    ],
)
def test_a_release_that_fails_its_trial_changes_nothing(quick: Bench, more: dict[str, object], said: str) -> None:
    before = quick.shop.serve(1)
    work = quick.shop.install(2, **more)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=said):
        quick.installer(msgspec.structs.replace(work, line=LINE))
    assert quick.shop.folder.current() == before
    assert {path.name for path in quick.shop.folder.path.iterdir()} == {"current", before.graph, before.card}


def test_withdrawing_serves_nothing(bench: Bench) -> None:
    bench.shop.serve(1)
    assert bench.installer(Withdraw(LINE)) == Withdrawn()
    assert bench.version() == 0


def test_blobs_that_are_missing_are_said(bench: Bench) -> None:
    work = bench.shop.install(1)
    bench.shop.blobs.sweep(set())
    with pytest.raises(StoreError, match="is not here"):
        bench.installer(work)


@pytest.mark.parametrize(
    ("program", "patience", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", LIMIT, "ended by signal 9"),
        ("import sys; sys.exit('out of luck')", LIMIT, "exit code 1; its last words: out of luck"),
        ("print('hello')", LIMIT, "gave no answer"),
        ("import time; time.sleep(3600)", 0.5, "without an end"),
    ],
)
def test_a_child_that_dies_or_hangs_is_a_clear_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, patience: float, said: str
) -> None:
    (tmp_path / "odd_trial.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench.shop.serve(1)
    with pytest.raises(MachineError, match=said):
        bench.with_program("odd_trial", patience)(bench.shop.install(2))
    assert bench.version() == 1


def test_what_libraries_print_does_not_get_into_the_answer(
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


def test_a_newer_order_ends_the_trial_of_an_older_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "endless_trial.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench.shop.serve(1)
    installer, said = bench.with_program("endless_trial"), list[str]()

    def install() -> None:
        try:
            installer(bench.shop.install(2))
        except MachineError as error:
            said.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    wait_until(lambda: installer._trials, "a trial that is under way")
    installer(bench.shop.install(1, known=True))
    thread.join(LIMIT)
    assert said == [f"an order on {LINE} was overtaken by a newer one"]
    assert bench.version() == 1


def test_work_that_was_dropped_before_its_thread_ran_is_not_done(bench: Bench) -> None:
    bench.shop.serve(1)
    bench.shop.serve(2)
    for work in (bench.shop.install(3), bench.shop.install(1, known=True), Withdraw(LINE)):
        bench.installer.expect(work)
        bench.installer.drop(LINE)
        with pytest.raises(MachineError, match="overtaken"):
            bench.installer(work)
        assert bench.version() == 2


def test_an_order_that_comes_when_the_trial_has_just_ended_still_wins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(_trial: Trial, _turn: int) -> Tried:
        bench.installer.drop(LINE)
        return Tried(None, Health())

    monkeypatch.setattr(bench.installer, "_try", overtaken)
    with pytest.raises(MachineError, match="overtaken"):
        bench.installer(bench.shop.install(1))
    assert bench.version() == 0


def test_an_installer_that_is_killed_at_any_moment_leaves_a_current_that_works(bench: Bench) -> None:
    """A real process that swaps as fast as it can, killed again and again."""
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
        if attempt > 2:  # in the other attempts it may be killed before its first swap
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
