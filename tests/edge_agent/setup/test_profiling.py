"""`sojourn agent profile`: its output, and its readings of the machine."""

from __future__ import annotations

import os
import socket
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from edge_agent.commands import app
from edge_agent.setup import profiling
from edge_agent.setup.profiling import heat, latency_to, machine, profile_of, text_of, worker_start, write
from sojourn.errors import ConfigError, LinkError, MachineError
from sojourn.model.workload import Speed
from sojourn.profile import NUMBERS, Profile
from sojourn.settings import read_file, read_text
from tests import forked
from tests.waiting import LIMIT

SPEED = Speed(2.5e9, 0.001)


def sojourn(*arguments: str) -> CompletedProcess[str]:
    return forked.run("agent", "profile", *arguments)


def test_machine_is_measured_and_its_profile_can_be_read(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    done = sojourn("--output", str(path), "--name", "mine", "--threads", "1", "--seconds", "0.4")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    profile = read_file(path, Profile)
    device = profile.device
    assert profile.name == "mine"
    assert f"{device.flops / 1e9:.2f} GFLOP/s in training" in done.stderr
    assert f"written to {path}" in done.stderr
    assert 1e7 < device.flops < 1e13
    assert 0 <= device.step_seconds < 1
    assert 0.01 < device.visit_seconds < LIMIT
    assert device.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device.cores == 1
    assert set(profile.sources) == set(NUMBERS)
    assert profile.sources["device.flops"].startswith("measured on ")
    assert profile.sources["link.up"].startswith("assumed: ")


def test_profile_is_printed_without_an_output_file(monkeypatch) -> None:
    monkeypatch.setattr(profiling, "worker_start", lambda: 0.75)
    done = CliRunner().invoke(app, ["profile", "--threads", "1", "--seconds", "0.1"])
    assert read_text(done.stdout, Profile, "stdout").name == "custom"


def test_invalid_options_are_rejected_before_measuring(tmp_path) -> None:
    done = sojourn("--name", "Not A Name")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --name 'Not A Name' is not a valid name")
    assert "is not a broker address" in sojourn("--broker", "here:there").stderr
    done = sojourn("--output", str(tmp_path / "none" / "mine.toml"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("none: no such folder\n")


def test_profile_survives_a_text_round_trip() -> None:
    for latency in (None, 0.004):
        profile = profile_of("mine", SPEED, 3, 0.75, latency)
        assert read_text(text_of(profile), Profile, "text") == profile
    device = profile.device
    assert (device.flops, device.step_seconds, device.visit_seconds, device.cores) == (2.5e9, 0.001, 0.75, 3)
    assert profile.link.latency == 0.004
    assert profile.sources["link.latency"].startswith("measured on ")
    assert profile.sources["link.down"].startswith("assumed: ")


def test_worker_start_time_is_measured(monkeypatch) -> None:
    monkeypatch.setattr(profiling, "_STARTS", 1)
    assert 0.01 < worker_start() < LIMIT


def test_worker_that_cannot_start_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(profiling, "_WORKER", "raise SystemExit('no room')")
    with pytest.raises(MachineError, match="a training worker does not start here: no room"):
        worker_start()


def test_latency_is_half_the_connect_time(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert 0 < latency_to("127.0.0.1", port) < LIMIT
        ticks = iter(range(100))
        monkeypatch.setattr(profiling, "perf_counter", lambda: float(next(ticks)))
        assert latency_to("127.0.0.1", port) == 0.5
    with pytest.raises(LinkError, match=f"127.0.0.1:{port} cannot be reached"):
        latency_to("127.0.0.1", port)


def test_heat_is_read_where_the_system_reports_it(tmp_path) -> None:
    assert heat(tmp_path) is None
    for number, degrees in enumerate(("41500", "nonsense", "62000")):
        zone = tmp_path / "sys" / "class" / "thermal" / f"thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "temp").write_text(degrees)
    assert heat(tmp_path) == "62 °C"
    firmware = tmp_path / profiling._THROTTLED
    firmware.parent.mkdir(parents=True)
    for bits, output in (("0", "not slowed down"), ("50005", "slowed down by heat or power")):
        firmware.write_text(f"{bits}\n")
        assert heat(tmp_path) == f"62 °C, {output}"


def test_machine_is_identified_by_board_or_processor_name(tmp_path) -> None:
    board, processor = tmp_path / "model", tmp_path / "cpuinfo"
    processor.write_text("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nprocessor\t: 1\nmodel name\t: Other\n")
    assert machine(board, processor) == "AMD EPYC"
    board.write_bytes(b"Raspberry Pi 4 Model B Rev 1.4\0")
    assert machine(board, processor) == "Raspberry Pi 4 Model B Rev 1.4"
    assert machine(tmp_path / "none", tmp_path / "none")


def test_unwritable_output_file_is_reported(tmp_path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        write("text", str(tmp_path))
