"""Settings reject unknown keys, and suggest the nearest valid ones."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.admin.settings import CoordinatorSettings
from coordinator.jobs.settings import read_job
from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.errors import ConfigError
from sojourn.parts import Prox
from sojourn.settings import nearest, read_file, read_text


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    colour: str = "red"
    size: int = 1


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    list: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("form", "text", "key", "table"),
    [
        (CoordinatorSettings, '[broker]\nhost = "h"\n', 'operators_file = "operators.toml"', "broker"),
        (CoordinatorSettings, "[broker]\n[broker.tls]\n", 'mandate_keys_file = "operators.pub"', "broker.tls"),
        (AgentSettings, 'name = "a"\n[data]\npath = "x"\n', 'shares = ["class-counts"]', "data"),
        (EdgeSettings, 'name = "e"\n[broker]\n', "home_assistant = { discovery = true }", "broker"),
    ],
)
def test_top_level_key_below_a_table_gets_a_hint(form, text, key, table) -> None:
    with pytest.raises(ConfigError) as refused:
        read_text(text + key, form, "f")
    expected = f"unknown key '{key.split()[0]}' in [{table}]; it is a key of the file itself: move its line above"
    assert expected in str(refused.value)
    read_text(f"{key}\n{text}", form, "f")


def test_key_of_another_table_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'colour'; it is a key of \[inner\]: move its line there"):
        read_text('name = "x"\ncolour = "red"', Outer, "f")


def test_valid_settings_are_read() -> None:
    assert read_text('name = "x"\n[inner]\nsize = 3', Outer, "f") == Outer("x", Inner("red", 3))


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('nam = "x"', "f: unknown key 'nam'; did you mean 'name'?"),
        ("", "f: the key 'name' is missing"),
        ('name = "x"\n[inner]\ncolor = "red"', "f: unknown key 'color' in [inner]; did you mean 'colour'?"),
        ('name = "x"\n[inner]\nzzzz = 1', "f: unknown key 'zzzz' in [inner]; known names are: colour, size"),
        ('name = "x"\n[inner]\nsize = "big"', "f: inner.size: expected `int`, got `str`"),
        (
            'name = "x"\ninner = "red"',
            "f: inner: expected a table with keys, not a single value; known keys are: colour, size",
        ),
        ('name = "x"\nlist = 1', "f: list: expected a list: put the value into brackets, [...]"),
        ("name = 3", "f: name: expected `str`, got `int`"),
        ("name = ", "f: not valid TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 20_000, "f: not valid TOML"),
    ],
)
def test_invalid_settings_are_explained(text, output) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text, Outer, "f")
    assert str(caught.value).startswith(output)


def test_unreadable_settings_files_are_rejected(tmp_path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "none.toml", Outer)
    (tmp_path / "bad.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_file(tmp_path / "bad.toml", Outer)
    (tmp_path / "good.toml").write_text('name = "x"')
    assert read_file(tmp_path / "good.toml", Outer) == Outer("x")


def test_nearest_name_is_suggested() -> None:
    assert nearest("fedagv", ["fedavg", "visit"]) == "did you mean 'fedavg'?"
    assert nearest("zzz", ["b", "a"]) == "known names are: a, b"
    assert nearest("zzz", [f"model-{number}" for number in range(50)]).endswith(" and 10 more")
    assert nearest("zzz", []) == "no names are known"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('strategy = "fedagv"', "there is no strategy 'fedagv'; did you mean 'fedavg'?"),
        ("round = 3", "unknown key 'round'; did you mean 'rounds'?"),
        ("rounds = 0", "rounds"),
        ("training.lr = nan", "training.lr"),
        ("training.lr = inf", "training.lr"),
        ("training.learning_rate = 0.1", "unknown key 'learning_rate' in [training]"),
        ("tours.lease = 0", "tours.lease"),
        ("tours.lease = nan", "tours.lease"),
        ("target = nan", "target"),
        ("target = 1.5", "target"),
        ("seed = -1", "seed"),
        ("threads = 0", "threads"),
        ('encoding = "int4"', "encoding"),
        ("arranger.sizes = 3", "unknown key 'sizes' in [arranger]"),
        ('arranger.name = "visits"', "arranger"),
        ("gate.norm_factor = 1.0", "gate.norm_factor"),
        ('tours.on_lost_site = "panic"', "tours.on_lost_site"),
    ],
)
def test_invalid_job_file_is_rejected(line, message) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job(f'name = "job"\ndata.test = "digits"\n{line}', "job.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("job.toml: ")


def test_name_alone_selects_a_part_or_a_model() -> None:
    job = read_job('name = "job"\ndata.test = "digits"\nmodel = "cnn"\nobjective = "prox"', "job.toml")
    assert (job.model.name, job.parts().objective) == ("cnn", Prox())


@pytest.mark.parametrize("name", ["", "Job", "a/b", "a" * 64, "a b", "+", "job\n"])
def test_job_name_must_fit_in_a_topic(name) -> None:
    with pytest.raises(ConfigError, match="is not a valid name"):
        read_job(f"name = {msgspec.json.encode(name).decode()}\ndata.test = 'digits'", "f")
