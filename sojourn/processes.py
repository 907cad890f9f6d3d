"""Child processes: how they start, which frames go through their pipes, and how they end with their parent."""

from __future__ import annotations

import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from sojourn.errors import InvalidMessage, MachineError

T = TypeVar("T")

GRACE = 5.0
"""Seconds for a process to end after its input was closed; then it is killed."""
MAX_FRAME_BYTES = 4 << 20
"""The maximum size of a frame from a child; larger data goes through files."""
_LAST_LINES = 8
_LINE = 500
_READ = 64 << 10
_HEAD = 8
_KEPT_VARIABLES = frozenset(
    ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "XDG_DATA_HOME", "SOJOURN_STORE")
)
_KEPT_PREFIXES = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "ORT_", "OMP_", "MKL_", "OPENBLAS_", "BLIS_", "NPY_")
"""Environment variables that a filtered environment keeps. Those of BLAS libraries and numpy select the kernels for the
CPU: without them, a worker would compute other bits than the process that started it (decision 7)."""
_PR_SET_PDEATHSIG = 1
_PROJECT_ROOT = str(Path(__file__).resolve().parents[1])
log = logging.getLogger(__name__)


class Child(Generic[T]):
    """A module of this project that runs in a separate process and process group.

    Frames go to its standard input and come from its standard output. The module holds the other end with `Parent`,
    which ends the process when its parent is gone.
    """

    def __init__(
        self,
        module: str,
        decoder: msgspec.msgpack.Decoder[T],
        *arguments: str,
        log: Callable[[str], None] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        files: Sequence[int] = (),
        timeout: float | None = None,
        max_frame: int = MAX_FRAME_BYTES,
    ) -> None:
        """Start the process; raises OSError if that fails.

        log: takes each line of its standard error, which goes to that of this process by default. env:
        `filtered_environment()` by default. files: descriptors that it inherits. timeout: seconds after which it is
        killed. max_frame: maximum bytes of a frame.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if log is None else subprocess.PIPE,
            bufsize=0,
            env=filtered_environment() if env is None else env,
            cwd=cwd,
            pass_fds=files,
            process_group=0,
        )
        assert self._process.stdin and self._process.stdout  # noqa: S101, PT018
        self.pid = self._process.pid
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        """The last lines of its standard error."""
        self.timed_out = False
        self._stdin, self._frames, self._log, self._rest = self._process.stdin, Frames(decoder, max_frame), log, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._parse)
        if self._process.stderr:
            self._selector.register(self._process.stderr, selectors.EVENT_READ, self._note)
        self._timeout = timeout
        self._timer = threading.Timer(timeout or 0.0, self._time_out)
        if timeout is not None:
            self._timer.daemon = True
            self._timer.start()

    def send(self, message: Any) -> bool:
        """Write a frame, blocking until the child has read it; return False if the child is gone."""
        try:
            write_all(self._stdin.fileno(), framed(message))
        except BrokenPipeError:
            return False
        return True

    @property
    def is_open(self) -> bool:
        """Whether more frames may come: a process that has ended closes its pipes."""
        return bool(self._selector.get_map())

    def receive(self, timeout: float | None = None) -> list[T]:
        """Wait at most `timeout` seconds, then return the frames received; invalid frames kill the child."""
        frames: list[T] = []
        for key, _ in self._selector.select(timeout):
            if data := os.read(key.fd, _READ):
                frames += key.data(data)
            else:
                self._selector.unregister(key.fileobj)
        return frames

    def frames(self) -> Iterator[T]:
        """Yield all frames until its end."""
        while self.is_open:
            yield from self.receive()

    def wait(self) -> None:
        """Wait for its end while the log gets its lines; frames are dropped."""
        for _ in self.frames():
            pass

    def ask(self, request: Any) -> T:
        """Send one request and return the one reply, once the process has ended; MachineError without a reply."""
        self.send(request)
        replies = list(self.frames())
        if self.reap() or not replies:
            raise MachineError(f"no reply: the process {self.ending()}")
        return replies[0]

    def close_input(self) -> None:
        """Close its input, which makes it end."""
        self._stdin.close()

    def kill(self) -> None:
        """Kill it and all processes that it has started; `reap` must still be called."""
        _kill_group(self._process)

    def reap(self) -> int:
        """Close its pipes, wait for its end and return the exit status."""
        self._timer.cancel()
        self._note(b"\n")
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return wait_or_kill(self._process, GRACE)

    def ending(self, lines: int = 1) -> str:
        """Describe how it ended, with the last lines of its standard error; call after `reap`."""
        status = self._process.returncode
        how = f"ended with exit code {status}" if status >= 0 else f"was ended by signal {-status}"
        if self.timed_out:
            how = f"did not end within {self._timeout:g} s"
        elif status == -signal.SIGKILL:
            how += ", most likely out of memory"
        last = " | ".join([*self.last_lines][-lines:])
        return f"{how}; last output: {last}" if last else how

    def _parse(self, data: bytes) -> list[T]:
        try:
            return self._frames.feed(data)
        except InvalidMessage as error:
            self.last_lines.append(str(error))
            self._selector.unregister(self._process.stdout)  # type: ignore[arg-type]  # it is a pipe
            self.kill()
            return []

    def _note(self, data: bytes) -> list[T]:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_READ:]
        for line in lines:
            if self._log and (text := line.decode(errors="replace").strip()[:_LINE]):
                self.last_lines.append(text)
                self._log(text)
        return []

    def _time_out(self) -> None:
        self.timed_out = self._process.poll() is None  # before the kill: waiting threads read this
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.kill()
        self.reap()


class Parent(Generic[T]):
    """The pipes between a child process and its parent, for the child. Nothing else may use the two pipes."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        """Take over the pipes: from now on, output of libraries goes to the standard error."""
        self._source, self._sink = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._frames = Frames(decoder, sys.maxsize)
        self.frames = chain.from_iterable(self.batches())
        """Frames as they arrive, until the parent closes the pipe or is gone."""

    def batches(self, pause: float | None = None) -> Iterator[list[T]]:
        """Yield frames in batches of all available ones; an empty batch after each pause of this many seconds."""
        while True:
            if not select.select([self._source], [], [], pause)[0]:
                yield []
            elif data := os.read(self._source, _READ):
                yield self._frames.feed(data)
            else:
                return

    def send(self, message: Any) -> None:
        """Write a frame."""
        write_all(self._sink, framed(message))

    def exit_with_parent(self) -> None:
        """End this process, whatever it is doing, as soon as the parent closes the pipe or is gone."""

        def exit_at_end() -> None:
            for _ in self.frames:
                pass
            os._exit(0)

        threading.Thread(target=exit_at_end, daemon=True).start()


class Frames(Generic[T]):
    """Splits the bytes of a pipe into frames."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], max_frame: int = MAX_FRAME_BYTES) -> None:
        self._decoder, self._max_frame, self._buffer = decoder, max_frame, bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Return the frames that these bytes complete; raise InvalidMessage if they are invalid."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEAD:
            size = int.from_bytes(self._buffer[:_HEAD])
            if size > self._max_frame:
                raise InvalidMessage(f"a frame of {size} bytes exceeds the limit of {self._max_frame}")
            if len(self._buffer) < _HEAD + size:
                break
            body = bytes(self._buffer[_HEAD : _HEAD + size])
            del self._buffer[: _HEAD + size]
            try:
                frames.append(self._decoder.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidMessage(f"not a frame: {error}") from error
        return frames


def framed(message: Any) -> bytes:
    """Encode a message as a frame: its length, then msgpack."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(_HEAD) + data


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however much the pipe accepts at a time."""
    view: Any = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def ask(module: str, request: Any, decoder: msgspec.msgpack.Decoder[T], timeout: float) -> T:
    """Return the reply of a module of this project, run in its own process; MachineError if there is none in time."""
    try:
        with Child(module, decoder, log=log.debug, timeout=timeout) as child:
            return child.ask(request)
    except OSError as error:
        raise MachineError(f"cannot start a process: {error}") from error


def filtered_environment() -> dict[str, str]:
    """Return an environment without secrets for a process that runs this project's modules.

    It keeps what Python and its libraries need; other variables may be secrets, or meant only for this process.
    """
    kept = {
        name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
    inherited = [str(Path(path).absolute()) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    # A pool of BLAS threads does not speed up the graphs, but takes memory.
    return kept | {"PYTHONPATH": os.pathsep.join([_PROJECT_ROOT, *inherited]), "OPENBLAS_NUM_THREADS": "1"}


def full_environment(*folders: str) -> dict[str, str]:
    """Return an environment with which a process can import all that this one can, and then from these folders."""
    paths = [str(Path(path).absolute()) for path in (*sys.path, _PROJECT_ROOT, *folders)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def lower_priority(niceness: int) -> None:
    """Run at a lower priority, and be the first process that the system kills when memory runs out."""
    os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


# Programs that do not use frames: they write to a log file, and do not receive Ctrl-C.


def start_program(command: Sequence[str], log: Path, *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a program in a separate session, so that its parent decides when it ends; its output goes to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509  # one system call, in a library that is already loaded
        )


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the exit status of a process that leads its group; after this many seconds the group is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return process.wait()


def last_lines(log: Path, count: int = 12) -> str:
    """Return the end of a log file, indented."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-count:])


def die_with_parent() -> Callable[[], None] | None:
    """Return a hook by which Linux ends the child with its parent thread; None outside of the main thread."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    import ctypes  # noqa: PLC0415  # agents never need it

    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # without its leader, the group id may belong to another group
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
