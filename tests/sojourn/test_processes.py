"""Child processes: fragmented frames, and all failures of a child or its parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sojourn.errors import InvalidMessage, MachineError
from sojourn.processes import (
    MAX_FRAME_BYTES,
    Child,
    Frames,
    ask,
    filtered_environment,
    framed,
    full_environment,
    last_lines,
    start_program,
    wait_or_kill,
)
from tests.processes import has_ended
from tests.waiting import LIMIT, wait_until

TEXT = msgspec.msgpack.Decoder(str)
CHILD = """
import os, signal, sys, time, subprocess
import msgspec
from sojourn.processes import Parent, framed
parent = Parent(msgspec.msgpack.Decoder(str))
"""
ECHO = "for frame in parent.frames: parent.send(frame)"
HANG = "parent.exit_with_parent(); parent.send('ready'); time.sleep(3600)"


class Start:
    """Starts children that run some code after they have opened their pipes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "child_of_test.py"

    def write(self, code: str) -> str:
        """Write the module and return its name."""
        self._file.write_text(CHILD + code)
        return self._file.stem

    def __call__(self, code: str, **more: Any) -> Child[str]:
        return Child(self.write(code), TEXT, **{"log": lambda _line: None, **more})


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Start(tmp_path)


def test_frames_can_arrive_in_any_pieces() -> None:
    sent = ["a", "b" * 500]
    stream, frames = b"".join(map(framed, sent)), Frames(TEXT)
    assert [frame for at in range(len(stream)) for frame in frames.feed(stream[at : at + 1])] == sent
    assert Frames(TEXT).feed(stream) == sent


@pytest.mark.parametrize("body", [b"\xc1", b"\x01", b"\xa1\xff", b"\x91" * 100_000])
def test_bytes_that_are_no_frame_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessage, match="not a frame"):
        Frames(TEXT).feed(len(body).to_bytes(8) + body)


def test_oversized_frame_is_refused_before_it_arrives() -> None:
    with pytest.raises(InvalidMessage, match="exceeds the limit of 10"):
        Frames(TEXT, 10).feed((11).to_bytes(8))
    assert Frames(TEXT, 10).feed(framed("x" * 9)) == ["x" * 9]


def test_child_answers_every_frame_and_ends_with_its_input(start: Start) -> None:
    gc.collect()  # files of earlier tests must not be closed meanwhile
    before = open_files()
    child = start(ECHO)
    frames = child.frames()
    for text in ("a", "b" * (1 << 20), "c"):
        assert child.send(text)
        assert next(frames) == text
    child.close_input()
    assert list(frames) == []
    assert child.reap() == 0
    assert child.ending() == "ended with exit code 0"
    assert open_files() <= before


def test_prints_go_to_the_log_and_not_between_the_frames(start: Start) -> None:
    lines: list[str] = []
    code = "print('noise', flush=True); os.system('echo more'); print(sys.stdin.read(), end=''); parent.send('answer')"
    with start(code, log=lines.append) as child:
        assert child.ask("question") == "answer"
    assert lines == ["noise", "more"]


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("sys.exit('out of luck')", "ended with exit code 1; last output: out of luck"),
        ("parent.send('answer'); os._exit(3)", "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was ended by signal 15"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal 9, most likely out of memory"),
    ],
)
def test_crash_is_reported_with_status_and_last_output(start: Start, code: str, ending: str) -> None:
    with start(code) as child, pytest.raises(MachineError, match=f"no reply: the process {ending}$"):
        child.ask("question")


def test_ending_has_as_many_lines_as_asked_for(start: Start) -> None:
    with start("sys.stderr.write('one\\n\\ntwo\\nthree'); sys.exit(2)") as child:
        child.wait()
        child.reap()
    assert child.ending(2) == "ended with exit code 2; last output: two | three"


@pytest.mark.parametrize("garbage", ["b'no frame at all'", "framed(5)", "(1 << 40).to_bytes(8)"])
def test_child_that_sends_garbage_is_killed(start: Start, garbage: str) -> None:
    with start(f"os.write(parent._sink, {garbage}); parent.send('a real frame'); time.sleep(3600)") as child:
        assert list(child.frames()) == []
    assert child.reap() == -signal.SIGKILL
    assert "frame" in child.last_lines[-1]


def test_frame_over_the_limit_kills_the_child(start: Start) -> None:
    with start(f"parent.send('x' * {MAX_FRAME_BYTES})\n{HANG}") as child:
        assert list(child.frames()) == []
    assert f"exceeds the limit of {MAX_FRAME_BYTES}" in child.ending()


def test_silent_child_is_killed_after_its_time(start: Start) -> None:
    with start("time.sleep(3600)", timeout=0.2) as child, pytest.raises(MachineError, match=r"not end within 0\.2 s"):
        child.ask("question" * (1 << 20))  # more than the pipe takes, and the child does not read
    assert child.timed_out


def test_receive_returns_when_nothing_comes(start: Start) -> None:
    with start(HANG) as child:
        assert next(child.frames()) == "ready"
        assert child.receive(0.01) == []
        assert child.is_open
        child.kill()


def test_kill_ends_what_the_child_has_started(start: Start) -> None:
    code = "parent.send(str(subprocess.Popen(['sleep', '3600']).pid)); time.sleep(3600)"
    with start(code) as child:
        pid = int(next(child.frames()))
        child.kill()
    wait_until(lambda: has_ended(pid), "the end of the grandchild")
    child.kill()  # once more does no harm


def test_error_in_the_parents_block_kills_the_child(start: Start) -> None:
    with pytest.raises(ZeroDivisionError), start("time.sleep(3600)") as child:
        _ = 1 / 0
    assert has_ended(child.pid)


def test_child_that_ignores_the_end_of_its_input_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.processes.GRACE", 0.05)
    child = start("parent.send('ready'); time.sleep(3600)")
    assert next(child.frames()) == "ready"
    assert child.reap() == -signal.SIGKILL


def test_sending_to_a_dead_child_returns_false(start: Start) -> None:
    with start("") as child:
        child.wait()
        assert child.send("question") is False


PARENT = """
import msgspec, time
from sojourn.processes import Child
child = Child("child_of_test", msgspec.msgpack.Decoder(str))
print(child.pid, next(child.frames()), flush=True)
time.sleep(3600)
"""


def test_child_ends_when_its_parent_is_killed(start: Start, tmp_path: Path) -> None:
    start.write(HANG)
    env = full_environment(str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid, word = parent.stdout.readline().split()
        assert word == b"ready"
        parent.kill()
    wait_until(lambda: has_ended(int(pid)), "the end of the child")


def test_batches_pause_while_nothing_comes(start: Start) -> None:
    code = "batches = parent.batches(0.01)\nassert next(batches) == []\nparent.send('idle')\n"
    code += "parent.send('+'.join(next(batch for batch in batches if batch)))"
    with start(code) as child:
        frames = child.frames()
        assert next(frames) == "idle"
        child.send("a")
        assert next(frames) == "a"


def test_child_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(MachineError, match=r"cannot start a process: .*nowhere"):
        ask("module", None, TEXT, LIMIT)


def test_ask_returns_the_answer_of_a_module(start: Start) -> None:
    assert ask(start.write("parent.send(next(parent.frames) + '!')"), "word", TEXT, LIMIT) == "word!"
    with pytest.raises(MachineError, match="No module named"):
        ask("no_such_module", "word", TEXT, LIMIT)


def test_full_environment_imports_what_this_process_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "kept")
    monkeypatch.syspath_prepend("relative")
    paths = full_environment(str(tmp_path))["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(Path.cwd() / "relative")
    assert paths[-1] == str(tmp_path)
    assert len(paths) == len(set(paths))
    assert full_environment()["SECRET"] == "kept"
    assert "SECRET" not in filtered_environment()


def test_program_logs_to_a_file_and_is_killed_with_its_group(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import subprocess, time; print('one'); print(subprocess.Popen(['sleep', '3600']).pid, flush=True)"
    process = start_program([sys.executable, "-c", f"{program}; time.sleep(3600)"], log)
    wait_until(lambda: log.read_text().count("\n") == 2, "its output")
    assert wait_or_kill(process, 0.01) == -signal.SIGKILL
    assert last_lines(log, 1).startswith("  ")
    wait_until(lambda: has_ended(int(last_lines(log, 1))), "the end of the grandchild")
