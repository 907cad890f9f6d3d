"""Simulations from their settings to their folders: repeated, resumed, disturbed, and refused."""

from __future__ import annotations

import io
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

import fleet_sim
from coordinator.results.folder import ResultFolder
from coordinator.state import CoordinatorState
from fleet_sim.console.comparing import Comparison, compare
from fleet_sim.console.planning import plan
from fleet_sim.console.simulating import one
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation, read_simulation_file
from fleet_sim.world import checkpoint
from sojourn.errors import ConfigError, JobError, SojournError
from sojourn.protocol.limits import decoded
from tests.there import there

TEXT = """
strategy = "feddyn"
rounds = 3
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
training = { epochs = 1, batch = 16, lr = 0.1, weight_decay = 0.0 }
[simulation]
devices = 6
engine = "serial"
[split]
alpha = 0.5
"""


def weights(folder) -> list[np.ndarray]:
    return [numpy_helper.to_array(each) for each in onnx.load(folder / "model.onnx").graph.initializer]


def outcomes(running) -> list[list[dict[str, str]]]:
    """The tables without times and bytes, because restarted nodes announce themselves and fetch kits again."""
    left_out = {"clock", "seconds", "bytes", "down", "up"}
    tables = (running.results.rows(name) for name in ("rounds.csv", "visits.csv"))
    return [[{key: row[key] for key in row.keys() - left_out} for row in rows] for rows in tables]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A simulation run to its end, and a copy of its folder after the first round."""
    folder, half = tmp_path_factory.mktemp("whole") / "a", tmp_path_factory.mktemp("half") / "a"
    running = SimulationRun(read_simulation(TEXT, "a test"), folder)
    save = checkpoint.save

    def saved(fleet, path) -> None:
        save(fleet, path)
        if not half.exists():
            shutil.copytree(path, half)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", saved)
        *_, last = running.courses()
    running.close()
    return running, last, half


def test_simulation_writes_its_tables(finished) -> None:
    running, last, _ = finished
    rounds, visits = running.results.rows("rounds.csv"), running.results.rows("visits.csv")
    assert last.view.status == "done"
    assert [row["round"] for row in rounds] == ["1", "2", "3"]
    assert [float(row["accuracy"]) for row in rounds] == [report.accuracy for report in last.history]
    clocks = [float(row["clock"]) for row in rounds]
    assert clocks == sorted(clocks)
    assert clocks[0] > 0
    assert len(visits) == 18
    assert {row["device"] for row in visits} == {f"device-{number}" for number in range(1, 7)}
    assert {row["status"] for row in visits} == {"done"}


def test_saved_settings_reproduce_the_simulation(finished) -> None:
    running, _, _ = finished
    text = (running.results.path / "config.toml").read_text()
    again = read_simulation(text, "config.toml")
    assert again.text == text
    assert again.read().parts() == running.simulation.read().parts()
    assert (again.fleet, again.split) == (running.simulation.fleet, running.simulation.split)


def test_saved_settings_include_all_defaults(finished) -> None:
    text = (finished[0].results.path / "config.toml").read_text()
    for line in (
        'optimiser = "sgd"',
        "momentum = 0.0",
        "a = ",
        "seed = 0",
        'board = "raspberry-pi-4"',
        "dropout = ",
    ):
        assert line in text, line


def test_interrupted_simulation_resumes_to_the_same_model(finished, tmp_path) -> None:
    running, last, half = finished
    resumed = SimulationRun(running.simulation, shutil.copytree(half, tmp_path / "half"), resume=True)
    courses = list(resumed.courses())
    resumed.close()
    assert len(courses[0].history) == 1
    assert [report.accuracy for report in courses[-1].history] == [report.accuracy for report in last.history]
    held = [it.fleet.job(it.name).vectors["model"].digest for it in (running, resumed)]
    assert held[0] == held[1]
    assert [row["round"] for row in resumed.results.rows("rounds.csv")] == ["1", "2", "3"]


def test_rows_after_the_last_checkpoint_are_not_duplicated(finished, tmp_path) -> None:
    running, _, half = finished
    folder = tmp_path / "killed"
    shutil.copytree(half, folder)
    shutil.copy(running.results.path / "visits.csv", folder)  # of all three rounds; the checkpoint contains one
    shutil.copy(running.results.path / "rounds.csv", folder)
    resumed = SimulationRun(running.simulation, folder, resume=True)
    for _ in resumed.courses():
        pass
    resumed.close()
    assert outcomes(resumed) == outcomes(running)


@pytest.mark.parametrize("written", [True, False])
def test_simulation_killed_before_evaluation_resumes(written, finished, tmp_path) -> None:
    running, _, half = finished
    folder = tmp_path / "killed"
    shutil.copytree(half, folder)
    (cloud,) = (store for name, store in checkpoint.load(folder).stores.items() if name == "cloud")
    assert decoded(there(cloud.load()[0]), CoordinatorState).jobs["simulation"].evaluation_pending
    head, first, *_ = (running.results.path / "rounds.csv").read_text().splitlines(keepends=True)
    (folder / "rounds.csv").write_text(head + first * written, newline="")
    resumed = SimulationRun(running.simulation, folder, resume=True)
    *_, last = resumed.courses()
    resumed.close()
    assert last.view.status == "done"
    assert outcomes(resumed) == outcomes(running)
    held = [it.fleet.job(it.name).vectors for it in (running, resumed)]
    assert held[0] == held[1]


def test_non_empty_folder_is_not_overwritten(finished) -> None:
    running, _, _ = finished
    with pytest.raises(ConfigError, match=r"is not empty.*--resume"):
        SimulationRun(running.simulation, running.results.path)


def test_terminal_run_with_forty_percent_dropout(tmp_path, capsys) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    console = Console(highlight=False, width=100)
    settings = {"availability.dropout": 0.4, "strategy": "fedavg", "rounds": 2}
    one(file, settings, tmp_path / "out", None, console)
    output = capsys.readouterr().out
    assert "serial" in output
    assert output.count("dropped out") == 1  # one sentence
    lost = [row for row in ResultFolder(tmp_path / "out", resume=True).rows("visits.csv") if row["status"] != "done"]
    assert f"{len(lost)} of " in output
    log = (tmp_path / "out" / "log.txt").read_text()
    assert all(row["device"] in log for row in lost)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "config.toml",
        "rounds.csv",
        "visits.csv",
        "model.onnx",
        "accuracy.png",
        "participation.png",
        "report.html",
    }
    assert all(np.isfinite(each).all() for each in weights(tmp_path / "out") if each.dtype == np.float32)
    assert "accuracy.png" in (tmp_path / "out" / "report.html").read_text()


def test_intermittent_devices_are_waited_for(tmp_path) -> None:
    away = {"availability.duty_cycle.on": 0.5, "availability.duty_cycle.of": 1.0, "fleet.devices": 1}
    simulation = read_simulation(TEXT, "a test", {**away, "rounds": 2, "strategy": "fedavg"})
    assert read_simulation(simulation.text, "again").availability == simulation.availability
    running = SimulationRun(simulation, tmp_path / "out")
    last = list(running.courses())[-1]
    running.close()
    assert last.view.status == "done"
    assert len({row["device"] for row in running.results.rows("visits.csv")}) >= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"simulation.devices": 0}, "simulation.devices|devices"),
        ({"simulation.devics": 3}, "did you mean 'device"),
        ({"simulation.data": "cifar11"}, "cifar1"),
        ({"simulation.board": "raspberry-pi-6"}, "did you mean 'raspberry-pi-"),
        ({"split.alpha": -1.0}, "alpha"),
        ({"strategy": "fedavgg"}, "did you mean 'fedavg'"),
        ({"fleet.devices": 60}, "but 6 are simulated"),
        ({"data.test": "x.npz"}, "omit data.test"),
        ({"simulation.data": "nowhere/set.npz"}, "nowhere/set.npz"),
        ({"simulation.trainer": "torch", "simulation.device": "cuda"}, "'cuda' is not available"),
        ({"simulation.device": "cuda"}, "'cuda' is not available"),
        ({"simulation.engine": "batched"}, "set trainer = 'torch'"),
        ({"availability.dropout": 1.4}, "dropout"),
        ({"simulation.link": "carrier-pigeon"}, "carrier-pigeon"),
    ],
    ids=str,
)
def test_unsupported_simulation_is_refused_with_a_reason(change, words, tmp_path) -> None:
    with pytest.raises(SojournError, match=words):
        SimulationRun(read_simulation(TEXT, "a test", change), tmp_path / "out")
    assert not (tmp_path / "out").exists() or "cuda" in words or "torch" in words


def test_package_exports_the_notebook_functions() -> None:
    assert callable(fleet_sim.simulate)
    assert fleet_sim.read_simulation is read_simulation
    assert {"Simulated", "Simulation", "read_simulation", "simulate"} <= set(dir(fleet_sim))
    with pytest.raises(AttributeError):
        _ = fleet_sim.nothing


def test_path_text_and_dict_give_the_same_simulation(tmp_path) -> None:
    file = tmp_path / "job.toml"
    text = TEXT.replace("rounds = 3", "rounds = 1").replace("feddyn", "fedavg")
    file.write_text(text)
    tables = {**tomllib.loads(text), "threads": np.int64(1), "target": None}
    given = [file, str(file), text, tables]
    ended = [fleet_sim.simulate(each, tmp_path / str(at)) for at, each in enumerate(given)]
    assert len({each.model.read_bytes() for each in ended}) == 1
    assert [each.folder for each in ended] == [tmp_path / str(at) for at in range(4)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("nowhere/job.toml", "there is no file nowhere/job.toml"),
        ("job", "there is no file job"),
        ({"rounds": object()}, "a job file cannot contain"),
        ({"rounds": 1, "simulation": {"data": Path("gone.npz")}}, "gone.npz"),
        ({"roundz": 1}, "the dict: unknown key 'roundz'; did you mean 'rounds'"),
        ("data = 'pets.npz'", "not a table"),
    ],
    ids=["path", "name", "object", "data", "key", "table"],
)
def test_invalid_notebook_settings_are_refused(settings, words, tmp_path) -> None:
    with pytest.raises(SojournError, match=words):
        fleet_sim.simulate(settings, tmp_path / "out")


def test_setting_inside_a_non_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rounds.most cannot be set, because rounds is 3, not a table"):
        read_simulation("rounds = 3", "a test", {"rounds.most": 4})


def test_finished_simulation_can_be_extended_by_rounds(finished, tmp_path, capsys) -> None:
    last = finished[1]
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    console = Console(highlight=False, width=100)
    one(file, {"rounds": 2}, tmp_path / "out", None, console)
    one(None, {"rounds": 3, "seed": 0, "simulation.board": ["raspberry-pi-4"]}, None, tmp_path / "out", console)
    assert "Done: 3 rounds are done." in capsys.readouterr().out
    rows = ResultFolder(tmp_path / "out", resume=True).rows("rounds.csv")
    assert [float(row["accuracy"]) for row in rows] == [report.accuracy for report in last.history]
    assert read_simulation((tmp_path / "out" / "config.toml").read_text(), "config").read().all_rounds == 3
    one(None, {}, None, tmp_path / "out", console)  # and stays so
    with pytest.raises(ConfigError, match="has completed 3 of 3 rounds: set the total with --rounds"):
        one(None, {"rounds": 2}, None, tmp_path / "out", console)


def test_resume_refuses_changed_settings(finished, tmp_path) -> None:
    folder, console = finished[2], Console()
    for changes, words in (
        ({"seed": 7}, "--seed cannot change on resuming \\(it was 0\\)"),
        ({"simulation.devices": 9}, "--devices cannot change on resuming \\(it was 6\\)"),
        ({"split.by": "iid"}, "--split cannot change on resuming \\(it was 'dirichlet'\\)"),
        ({"training.lr": 0.5}, "--lr cannot change on resuming"),
        ({"data.mean": [1.0]}, "--set data.mean cannot change on resuming \\(it was not set\\)"),
    ):
        with pytest.raises(ConfigError, match=f"{words}.*omit it, or start a new simulation"):
            one(None, changes, None, folder, console)
    with pytest.raises(ConfigError, match="not the file job"):
        one(Path("job.toml"), {}, None, folder, console)
    with pytest.raises(ConfigError, match="not --output elsewhere"):
        one(None, {}, Path("elsewhere"), folder, console)


def test_simulation_cannot_start_from_an_earlier_job() -> None:
    with pytest.raises(ConfigError, match=r"has no earlier job to start from: omit model\.start"):
        read_simulation(TEXT, "a test", {"model.start": "job:before"})


def test_a_board_is_no_file() -> None:
    with pytest.raises(ConfigError, match="--board raspberry-pi-5"):
        read_simulation_file(Path("raspberry-pi-5"))


def test_job_without_enough_devices_fails_with_the_reason(tmp_path) -> None:
    settings = read_simulation(
        "", "test", {"strategy": "clusamp", "simulation.devices": 3, "simulation.engine": "serial"}
    )
    running = SimulationRun(settings, tmp_path / "results", train=False)
    try:
        *_, course = running.courses()
        assert course.view.status == "failed"
        with pytest.raises(JobError, match=r"waited 86400 s for devices .*: clusamp needs at least 10 devices"):
            running.finish(course)
    finally:
        running.close()


DROPPING = {
    "strategy": "fedavg", "seed": 3, "rounds": 6, "threads": 1, "model.options.hidden": [16], "training.epochs": 1,
    "simulation.devices": 2, "simulation.engine": "serial", "availability.dropout": 0.8,
}  # fmt: skip
"""After one round, no visit of three attempts at the next one succeeds."""
DROPPED = "job simulation failed after 1 of 6 rounds: 3 attempts at round 2 had no result; in the last one, no device"


def test_job_whose_every_visit_fails_is_an_error(tmp_path) -> None:
    settings = read_simulation("", "test", DROPPING | {"availability.dropout": 1.0})
    with pytest.raises(
        JobError, match=r"^job simulation failed: 3 attempts at round 1 had no result; .*No round was finished"
    ):
        fleet_sim.simulate(settings, tmp_path / "out")
    assert "dropped out" in (tmp_path / "out" / "failed.txt").read_text()
    assert not (tmp_path / "out" / "model.onnx").exists()


def test_job_failing_after_some_rounds_keeps_their_results(tmp_path, capsys) -> None:
    with pytest.raises(JobError, match=f"^{DROPPED}"):
        one(None, DROPPING, tmp_path / "out", None, Console(width=200))
    assert f"Failed: {DROPPED.partition(': ')[2]}" in capsys.readouterr().out
    results = ResultFolder(tmp_path / "out", resume=True)
    assert results.failure.startswith(DROPPED)
    assert len(results.rows("rounds.csv")) == 1
    assert f'<p class="bad">{DROPPED}' in (tmp_path / "out" / "report.html").read_text()
    ended = [row["tour"].split("/")[1] for row in results.rows("visits.csv")]
    assert ended.count("2") == 6


def test_failing_plan_is_an_error(tmp_path) -> None:
    with pytest.raises(JobError, match="no round finished: 3 attempts at round 1 had no result"):
        plan(None, DROPPING | {"availability.dropout": 1.0}, tmp_path / "out", Console())


def test_impossible_job_without_timeout_does_not_hang(tmp_path) -> None:
    wanted = {"strategy": "clusamp", "fleet.timeout": 0, "simulation.devices": 3, "simulation.engine": "serial"}
    running = SimulationRun(read_simulation("", "test", wanted), tmp_path / "results", train=False)
    try:
        with pytest.raises(JobError, match="no more events: waiting, clusamp needs at least 10 devices"):
            list(running.courses())
    finally:
        running.close()


GROWING = """
import msgspec
from edge_agent.training.objectives import VisitOutput, Plain


class GrowingProx(msgspec.Struct):
    mu: float = 0.5

    def begin(self, w_in, received, memory):
        return Pulling(self.mu, w_in, memory.get("visits"))


class Pulling(Plain):
    def __init__(self, mu, w_in, visits):
        self.w_in, self.visits = w_in, w_in * 0 if visits is None else visits
        self.mu = mu * (1 + self.visits)

    def direction(self, w, slope):
        loss, gradient = slope(w)
        return loss, gradient + self.mu * (w - self.w_in)

    def end(self, w_out, steps, lr):
        return VisitOutput(memory={"visits": self.visits + 1})
"""
CUSTOM = TEXT.replace("feddyn", "fedavg")


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """A working folder with the module of a custom objective; the module is removed from the imports afterwards."""
    (tmp_path / "growing.py").write_text(GROWING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    yield tmp_path
    sys.modules.pop("growing", None)


def one_vector(folder) -> np.ndarray:
    return np.concatenate([each.ravel() for each in weights(folder)])


def with_objective(engine: str, **settings: float):
    changes = {"objective.name": "growing:GrowingProx", "simulation.engine": engine, "simulation.workers": 1}
    return read_simulation(CUSTOM, "a test", changes | {f"objective.{key}": value for key, value in settings.items()})


def test_custom_objective_in_the_working_folder_is_simulated(working_folder) -> None:
    plain = fleet_sim.simulate(read_simulation(CUSTOM, "a test"), working_folder / "plain")
    ends = {
        name: fleet_sim.simulate(simulation, working_folder / name)
        for name, simulation in {
            "serial": with_objective("serial"),
            "pool": with_objective("pool"),
            "strong": with_objective("serial", mu=2.0),
        }.items()
    }
    assert {end.course.view.status for end in ends.values()} == {"done"}
    assert {row["status"] for end in ends.values() for row in end.visits} == {"done"}
    models = {name: one_vector(end.folder) for name, end in {"plain": plain, **ends}.items()}
    assert np.array_equal(models["serial"], models["pool"])
    assert not np.array_equal(models["serial"], models["plain"])
    assert not np.array_equal(models["serial"], models["strong"])


def test_compare_runs_a_custom_objective(working_folder) -> None:
    (working_folder / "custom.toml").write_text(CUSTOM + '[objective]\nname = "growing:GrowingProx"\n')
    (working_folder / "plain.toml").write_text(CUSTOM)
    files = [working_folder / "custom.toml", working_folder / "plain.toml"]
    compare(Comparison(files, [], [], {"rounds": 1}, output=working_folder / "out"), Console(file=io.StringIO()))
    custom, plain = (one_vector(working_folder / "out" / name) for name in ("custom", "plain"))
    assert not np.array_equal(custom, plain)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objective.name": "not_here:Prox"}, "there is no not_here.py in .*: copy it into one of these folders"),
        ({"objective.name": "growing:Pulling"}, "growing:Pulling lacks the methods begin"),
        ({"objective.name": "growing:GrowingProx", "objective.mu": "x"}, "Expected `float`, got `str`"),
    ],
)
def test_unusable_custom_objective_is_refused(working_folder, changes, why) -> None:
    with pytest.raises(ConfigError, match=why):
        SimulationRun(read_simulation(CUSTOM, "a test", changes), working_folder / "refused")


STRICT = "[gate]\nagainst_factor = 1.0001\nmost_evidence = -3.0\nleast_cosine = 1.0\n"
"""A gate that refuses every model with a higher loss."""
SKEWED = TEXT.replace('feddyn"', 'fedcat"\narranger = { sets = 6 }').replace("alpha = 0.5", "alpha = 0.1")


def simulated(text: str, folder: Path) -> SimulationRun:
    running = SimulationRun(read_simulation(text, "a test"), folder)
    *_, last = running.courses()
    running.finish(last)
    running.close()
    running.draw()
    return running


def test_coordinator_refusals_are_in_every_table(tmp_path) -> None:
    running = simulated(SKEWED + STRICT, tmp_path / "a")
    visits, rounds = running.results.rows("visits.csv"), running.results.rows("rounds.csv")
    refused = [row for row in visits if row["status"] == "refused"]
    why = "by the coordinator, because the loss on the exemplars went"
    assert any(row["reason"].startswith(why) for row in refused)
    assert sum(row["status"] == "done" for row in visits) == sum(int(row["visits"]) for row in rounds)
    assert len(visits) - len(refused) == sum(int(row["visits"]) for row in rounds)
    assert sum(int(row["lost"]) for row in rounds) == len(refused)
    page = (running.results.path / "report.html").read_text()
    assert "No visit was lost" not in page
    assert "by the coordinator, because" in page
    assert "set gate = " in page
    assert running.losses.startswith(f"{len(refused)} of {len(visits)} visits were lost")
    log = (running.results.path / "log.txt").read_text()
    assert "refused when its model came from site site-1, by the coordinator, because" in log


def test_reporting_gate_refuses_nothing_and_keeps_the_model(tmp_path) -> None:
    report = STRICT + "report = true\n"
    runs = [simulated(SKEWED + gate, tmp_path / str(at)) for at, gate in enumerate((report, "[gate]\non = false\n"))]
    for ours, theirs in zip(*(weights(running.results.path) for running in runs), strict=True):
        assert np.array_equal(ours, theirs)
    visits = runs[0].results.rows("visits.csv")
    flagged = [row for row in visits if row["reason"].startswith("would have been refused by the coordinator, because")]
    assert flagged
    assert {row["status"] for row in visits} == {"done"}
    assert f"The gate would have refused {len(flagged)} of {len(visits)} visits: " in runs[0].losses
    page = (runs[0].results.path / "report.html").read_text()
    assert "What the gate would have refused, and why" in page
    assert "No visit was lost" in page
    assert "would have been refused" in (runs[0].results.path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("gate", "mode"),
    [
        ("", (True, True)),
        ('gate = "enforce"\n', (True, False)),
        ('gate = "off"\n', (False, False)),
        ("gate = { loss_factor = 3.0 }\n", (True, False)),
    ],
)
def test_simulation_gate_only_reports_by_default(gate, mode) -> None:
    job = read_simulation(gate + TEXT, "a test").read()
    assert (job.gate.on, job.gate.report) == mode
    again = read_simulation(read_simulation(gate + TEXT, "a test").text, "its own text").read()
    assert again.gate == job.gate


def test_unknown_gate_mode_is_an_error_listing_all_modes() -> None:
    with pytest.raises(ConfigError, match="gate = 'reprot' is not a mode of the gate: write 'enforce', 'report'"):
        read_simulation('gate = "reprot"\n' + TEXT, "a test")
