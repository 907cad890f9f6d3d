"""Tests of a job file as it is sent to the coordinator."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from coordinator.console.job_commands import job_text
from coordinator.jobs.settings import ModelSettings, read_job
from sojourn.errors import ConfigError

JOB = """
name = "first"  # a comment
[data]
test = "test.npz"
exemplars = "../shown.npz"
[training]
lr = 1e-3
[model]
name = "mlp"
options = { hidden = [32, 16] }
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "job.toml"
    file.write_text(text)
    return file


def test_data_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    text = job_text(write(tmp_path, JOB))
    assert tomllib.loads(text) == {
        **tomllib.loads(JOB),
        "data": {"test": str(tmp_path / "test.npz"), "exemplars": str(tmp_path.parent / "shown.npz")},
    }
    assert read_job(text, "it").model.options == {"hidden": [32, 16]}


def test_digits_stay_a_name_and_job_can_be_renamed(tmp_path: Path) -> None:
    text = job_text(write(tmp_path, 'name = "first"\n[data]\ntest = "digits"\n'), "second")
    assert tomllib.loads(text) == {"name": "second", "data": {"test": "digits"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nme = 1", "job.toml: unknown key 'nme'; did you mean 'name'"),
        ('name = "A"\n[data]\ntest = "digits"', "job.toml: the job's name 'A' is not a valid name"),
        ("name = ", "job.toml: not valid TOML"),
        ('name = "a"\n[data]\ntest = "digits"\n[model.options]\nx = "' + 50_000 * "x" + '"', "50000 characters"),
    ],
)
def test_mistakes_are_found_before_sending(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        job_text(write(tmp_path, text))


def test_model_paths_become_absolute(tmp_path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('name = "a"\nmodel = { name = "net:Net", path = "nets", start = "a.pth" }\ndata.test = "digits"\n')
    job = read_job(job_text(file), "it")
    assert (job.model.path, job.model.start) == (str(tmp_path / "nets"), str(tmp_path / "a.pth"))
    assert read_job(job_text(file, start_from="b@3"), "it").model.start == "job:b@3"
    file.write_text('name = "a"\nmodel = "cnn"\ndata.test = "digits"\n')
    assert read_job(job_text(file, start_from="b"), "it").model == ModelSettings(name="cnn", start="job:b")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ('start = "weights.txt"', "or a file with weights, .safetensors, .pt, .pth, .bin or .onnx"),
        ("new_head = true", "model.new_head needs start weights: name them in model.start"),
        ('path = "nets"', "path is the folder of a custom class"),
        ('name = "torchvision:resnet18"\npath = "nets"', "path is the folder of a custom class"),
        ('train = ["fc.*"]', "did you mean 'trains'"),
    ],
)
def test_model_mistakes_are_named(model: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_job(f'name = "a"\ndata.test = "digits"\n[model]\n{model}', "it")
