"""Plans: time and traffic of a simulation without its training."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from edge_agent.setup.profiling import text_of
from fleet_sim.board_profiles import PROFILES
from fleet_sim.console.planning import plan
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError

TEXT = """
rounds = 2
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
[simulation]
devices = 6
engine = "serial"
board = ["raspberry-pi-zero-2", "raspberry-pi-5"]
[split]
alpha = 0.5
"""
ALL = (
    "visit", "fedavg", "fedseq", "fedseq-inter-dyn", "scaffold", "fedgsp", "fedcat", "fedelmy", "clusamp",
    "hierfavg", "feddyn",
)  # fmt: skip
FEW = {"fedcat": {"arranger.sets": 3}, "clusamp": {"arranger.sets": 3}, "fedelmy": {"objective.warmup": 1, "rounds": 1}}


def ran(folder, strategy: str, *, train: bool, **changes: object) -> SimulationRun:
    settings = {"strategy": strategy, "training.epochs": 1, **FEW.get(strategy, {}), **changes}
    running = SimulationRun(read_simulation(TEXT, "a test", settings), folder, train=train)
    last = list(running.courses())[-1]
    running.close()
    assert last.view.status == "done", last.view.detail
    return running


@pytest.mark.parametrize("strategy", ALL)
def test_plan_matches_the_bytes_and_time_of_the_simulation(strategy, tmp_path) -> None:
    """The order of devices may differ if they are arranged by what was learned; the traffic does not."""
    planned, simulated = (ran(tmp_path / str(train), strategy, train=train) for train in (False, True))
    assert planned.fleet.traffic == pytest.approx(simulated.fleet.traffic, rel=0.02)
    assert len(planned.results.rows("visits.csv")) == len(simulated.results.rows("visits.csv"))
    if strategy in {"fedavg", "scaffold", "feddyn", "hierfavg", "fedelmy", "fedgsp"}:  # arranged without learning
        assert planned.fleet.world.now == pytest.approx(simulated.fleet.world.now, rel=1e-3)


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_plan_includes_the_savings_of_a_smaller_encoding(encoding, tmp_path) -> None:
    planned, simulated = (
        ran(tmp_path / str(train), "fedavg", train=train, encoding=encoding) for train in (False, True)
    )
    assert planned.fleet.traffic == pytest.approx(simulated.fleet.traffic, rel=0.02)


def test_slower_boards_have_longer_visits(tmp_path) -> None:
    running = ran(tmp_path, "fedavg", train=False, **{"split.by": "iid"})
    rows = running.results.rows("devices.csv")
    slow = [float(row["seconds"]) for row in rows if row["profile"] == "raspberry-pi-zero-2"]
    fast = [float(row["seconds"]) for row in rows if row["profile"] == "raspberry-pi-5"]
    assert len(slow) == 4  # two of the three devices of each site
    assert len(fast) == 2
    assert min(slow) > max(fast)


def test_plan_accuracy_is_nan(tmp_path) -> None:
    running = ran(tmp_path, "fedavg", train=False)
    assert {row["accuracy"] for row in running.results.rows("rounds.csv")} == {"nan"}


def test_plan_fits_an_80_column_terminal(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    plan(file, {"target": 0.01}, None, Console(highlight=False, width=80))
    output = capsys.readouterr().out
    assert "the whole job, 2 rounds" in output
    assert "raspberry-pi-zero-2" in output
    assert "Nothing was trained" in output
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]
    assert max(map(len, output.split("Nothing")[0].splitlines())) <= 80


def test_plan_takes_a_job_file_with_a_test_set(tmp_path) -> None:
    job = "name = 'pets'\nstrategy = 'fedavg'\nmodel = 'mlp'\n[data]\ntest = 'digits'\n[fleet]\ndevices = 2\n"
    planned = read_simulation(job, "job.toml", planned=True)
    assert planned.fleet.data == "digits"
    assert planned.notes == (
        "The devices' samples are drawn from the job's test set, digits. Use --data for another set.",
    )
    named = read_simulation(job, "job.toml", {"simulation.data": "digits"}, planned=True)
    assert named.notes == ("data.test (digits) is ignored: a plan tests nothing, and devices have digits",)
    photos = read_simulation(job.replace("'digits'", "'photos/test'"), str(tmp_path / "job.toml"), planned=True)
    assert photos.fleet.data == str(tmp_path / "photos/test")
    with pytest.raises(ConfigError, match=r"omit data\.test"):
        read_simulation(job, "job.toml")


def test_plan_names_boards_with_too_little_memory(tmp_path, capsys) -> None:
    small = PROFILES["raspberry-pi-zero-2"]
    small = msgspec.structs.replace(small, device=msgspec.structs.replace(small.device, memory=200 << 20))
    board = tmp_path / "small.toml"
    board.write_text(text_of(small))
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    console, changes = Console(highlight=False, width=300), {"strategy": "fedavg", "rounds": 1}
    plan(file, changes, None, console)
    assert "parameters, batch 32); all boards have enough." in capsys.readouterr().out
    plan(file, {**changes, "simulation.board": [str(board), "raspberry-pi-5"]}, None, console)
    output = " ".join(capsys.readouterr().out.split())
    assert "small.toml cannot train this model: of its 200 MB of memory, the system uses about 160 MB" in output
    assert "(4 of 6 devices)" in output
    assert "raspberry-pi-5 cannot" not in output


def test_plan_writes_its_tables_to_the_output_folder(tmp_path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    plan(file, {}, tmp_path / "out", Console(highlight=False, width=80))
    assert {"rounds.csv", "visits.csv", "sites.csv", "devices.csv"} <= {p.name for p in (tmp_path / "out").iterdir()}
    with pytest.raises(ConfigError, match="is not empty"):
        plan(file, {}, tmp_path / "out", Console(highlight=False, width=80))
