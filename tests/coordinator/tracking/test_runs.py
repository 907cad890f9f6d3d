"""Tests of the names of a job's settings and metrics, which every tracker must accept."""

from __future__ import annotations

import math

import pytest

from coordinator.jobs.settings import read_job
from coordinator.tracking.run_stores import TrackingSettings
from coordinator.tracking.runs import KEY, PARAMS, VALUE, params_of, round_of, safe_key, settings_of, tags_of
from sojourn import __version__, errors
from sojourn.errors import ConfigError, MachineError
from sojourn.protocol.wire import RoundReport

JOB = read_job(
    'name = "first"\nstrategy = "fedprox"\nseed = 7\nrounds = 3\n[objective]\nmu = 0.5\n[data]\ntest = "digits"\n',
    "job",
)


def report(**changes) -> RoundReport:
    plain = {"accuracy": 0.5, "loss": 1.5, "tours": 2, "visits": 8, "lost": 1, "traffic": 1000, "seconds": 2.5}
    return RoundReport(round=3, quality={"vts": 0.25}, **{**plain, **changes})


def test_parameters_are_effective_settings() -> None:
    params = params_of(settings_of(JOB))
    assert params["objective.name"] == "prox"
    assert params["objective.mu"] == "0.5"
    assert params["training.lr"] == str(JOB.parts().training.lr)
    assert params["seed"] == "7"
    assert tags_of(JOB) == {
        "job": "first", "strategy": "fedprox", "model": "mlp", "task": "classification", "seed": "7", "rounds": "3",
        "version": __version__,
    }  # fmt: skip


def test_parameters_are_limited_and_their_names_safe() -> None:
    found = params_of({"../..": "x" * 10_000, **{f"key-{n:03}": n for n in range(1000)}})
    assert len(found) == PARAMS
    assert all(len(value) <= VALUE for value in found.values())
    assert found["_"] == "x" * (VALUE - 1) + "…"


@pytest.mark.parametrize(("text", "key"), [
    ("accuracy", "accuracy"), ("arrangement/vts", "arrangement/vts"), ("../../etc/passwd", "etc/passwd"),
    ("<script>\n", "_script__"), ("", "_"), ("/", "_"), ("a" * 999, "a" * KEY),
])  # fmt: skip
def test_key_is_made_safe(text, key) -> None:
    assert safe_key(text) == key


def test_round_metrics_omit_unknown_values() -> None:
    found = round_of("run", report(accuracy=math.nan, metrics={"macro_f1": 0.75}), 12.0, {"clock_seconds": 4.0})
    assert (found.id, found.step, found.at) == ("run", 3, 12.0)
    assert found.metrics == {
        "loss": 1.5, "macro_f1": 0.75, "tours": 2.0, "visits": 8.0, "failures": 1.0, "bytes": 1000.0, "seconds": 2.5,
        "arrangement/vts": 0.25, "clock_seconds": 4.0,
    }  # fmt: skip


def test_store_must_be_a_local_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("m.db", "sqlite:///m.db", f"sqlite:///{tmp_path}/m.db"):
        assert TrackingSettings(mlflow=text).resolved("here").mlflow == f"sqlite:///{tmp_path}/m.db"
    assert TrackingSettings(tensorboard="tb").resolved("here").tensorboard == str(tmp_path / "tb")
    for text in ("http://mlflow:5000", "postgresql://db", "sqlite:///"):
        with pytest.raises(ConfigError, match=r"here: tracking.mlflow = .* is not an SQLite store"):
            TrackingSettings(mlflow=text).resolved("here")


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_missing_package_names_its_extra(monkeypatch, name) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda module: None)
    with pytest.raises(MachineError, match=rf"tracking.{name} needs {name}, .*pip install '\.\[{name}\]'"):
        TrackingSettings(**{name: "x"}).need()
    TrackingSettings().need()
