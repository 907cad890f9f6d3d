"""The commands `sojourn release create` and `show`, for a job and for an ONNX file."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from coordinator.console import options
from coordinator.console.release_commands import app
from coordinator.releases.file import ReleaseFile, read_release
from sojourn import errors
from sojourn.errors import ConfigError, DataError, MachineError, ModelError
from sojourn.model.predictions import Predictor
from sojourn.protocol.release import HealthRules, LineView, RolloutPlan
from sojourn.protocol.wire import JobView
from tests.coordinator.releases.release_material import linear
from tests.coordinator.releases.test_file import release


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = linear()
    Path("model.onnx").write_bytes(model.SerializeToString())
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 4)).astype(np.float32)
    w, b = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    y = (x @ w + b).argmax(1)
    y[:30] = (y[:30] + 1) % 3  # the model is wrong on these
    np.savez("test.npz", x=x, y=y)


def run(*given: str) -> str:
    done = CliRunner().invoke(app, list(given))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def create(*given: str) -> str:
    return run("create", "--file", "model.onnx", "--line", "wine", "--version", "7", *given)


def test_file_alone_becomes_an_unmeasured_release() -> None:
    output = create()
    card = read_release(Path("wine-7.release")).card
    assert "not measured" in output
    assert np.isnan(card.accuracy)
    assert (card.classes, card.model, card.probe.rows) == (("0", "1", "2"), "model.onnx", 8)
    first = Path("wine-7.release").read_bytes()
    create("-o", "again")
    assert read_release(Path("again")).card.probe == card.probe
    assert len(first) == Path("again").stat().st_size


def test_samples_give_accuracy_and_options_give_class_names() -> None:
    output = create("--samples", "test.npz", "--class-names", "red, white,rose", "--notes", "a note")
    made = read_release(Path("wine-7.release"))
    with np.load("test.npz") as file:
        x, y = file["x"], file["y"]
    right = Predictor(made.graph).logits(x).argmax(1) == y
    assert int((~right).sum()) == 30
    # Ten of each class are kept apart: what is tested are the others.
    assert made.card.tested == 270
    assert 240 / 270 <= made.card.accuracy <= 1.0
    assert round(made.card.accuracy * 270) == pytest.approx(made.card.accuracy * 270)
    assert (made.card.classes, made.card.notes) == (("red", "white", "rose"), "a note")
    assert "270 samples" in output
    assert "red, white, rose" in output
    Path("names.txt").write_text("red\nwhite\n\nrose\n")
    create("--classes-file", "names.txt")
    assert read_release(Path("wine-7.release")).card.classes == ("red", "white", "rose")


def test_labels_may_be_names() -> None:
    with np.load("test.npz") as file:
        x, y = file["x"], file["y"]
    names = np.array(["white", "red", "rose"])
    np.savez("named.npz", x=x, y=names[y])
    np.savez("listed.npz", x=x, y=y, classes=names)
    create("--samples", "test.npz")
    plain = read_release(Path("wine-7.release")).card
    for file in ("named.npz", "listed.npz"):
        create("--samples", file, "--class-names", "white,red,rose")
        card = read_release(Path("wine-7.release")).card
        assert card.classes == ("white", "red", "rose")
        assert card.accuracy == pytest.approx(plain.accuracy, abs=0.03)
    create("--samples", "listed.npz")
    assert read_release(Path("wine-7.release")).card.classes == ("white", "red", "rose")
    for file in ("named.npz", "listed.npz"):
        create("--samples", file, "--class-names", "red,white,rose")  # the model's order is another one
        assert read_release(Path("wine-7.release")).card.accuracy < 0.6


def test_int8_loss_of_a_file_is_measured() -> None:
    output = create("--samples", "test.npz", "--int8")
    card = read_release(Path("wine-7.release")).card
    assert (card.encoding, card.tested) == ("int8", 270)
    assert abs(card.accuracy_lost) <= 0.05
    assert "int8 cost" in output or "int8 gained" in output
    with pytest.raises(ConfigError, match="int8 needs --samples"):
        create("--int8")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "name either a job, or an ONNX file"),
        (["job", "--file", "model.onnx"], "name either a job, or an ONNX file"),
        (["job", "--line", "a", "--samples", "test.npz"], "require --file"),
        (["--file", "model.onnx", "--line", "wine"], "name the version with --version"),
        (["--file", "model.onnx", "--line", "Wine", "--version", "1"], "--line"),
        (["--file", "model.onnx", "--version", "1"], "--line"),
        (["--file", "model.onnx", "--line", "a", "--version", "1", "--notes", "x" * 2001], "2000 characters"),
        (["--file", "model.onnx", "--line", "a", "--version", "1", "--class-names", "a,b"], "needs 3 different ones"),
        (["--file", "model.onnx", "--line", "a", "--version", "1", "--class-names", "a,b,a"], "needs 3 different ones"),
        (["--file", "model.onnx", "--line", "a", "--version", "1", "--classes-file", "none"], "cannot be read"),
    ],
)
def test_invalid_options_report_reason(given: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run("create", *given)
    assert not list(Path().glob("*.release"))


def test_unsuitable_files_are_rejected() -> None:
    with pytest.raises(DataError, match=r"none\.onnx cannot be read"):
        run("create", "--file", "none.onnx", "--line", "a", "--version", "1")
    Path("wrong.onnx").write_bytes(b"wrong")
    with pytest.raises(ModelError, match=r"wrong\.onnx"):
        run("create", "--file", "wrong.onnx", "--line", "a", "--version", "1")
    x = np.zeros((6, 4), np.float32)
    for arrays, words in (
        ({"x": x}, "no array 'y'"),
        ({"x": x, "y": np.arange(6)}, "two of each"),
        ({"x": x[:, :3], "y": np.arange(6) % 3}, "of shape"),
        ({"x": x, "y": 5 + np.arange(6) % 3}, "the label 5, but only 3 class names"),
        (
            {"x": x, "y": np.array(list("aabbcc")), "classes": np.array(["a", "b"])},
            "2 classes, and the model has 3",
        ),
    ):
        np.savez("odd.npz", **arrays)
        with pytest.raises(DataError, match=words):
            create("--samples", "odd.npz")


def test_missing_onnx_names_package_to_install(monkeypatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda module: None if module == "onnx" else object())
    with pytest.raises(MachineError, match=r"needs onnx, which is not installed: install .* pip install '\.\[cloud\]'"):
        create()


def test_show_prints_the_card() -> None:
    create("--samples", "test.npz", "--class-names", "red,white,rose", "--notes", "[bold]a note")
    output = " ".join(run("show", "wine-7.release").split())
    made = read_release(Path("wine-7.release"))
    for word in ("wine 7", "float32 rows x 4", "red, white, rose", "[bold]a note", made.card.created, "model.onnx"):
        assert word in output
    with pytest.raises(DataError, match="is not a release"):
        run("show", "model.onnx")


@dataclass
class Known:
    """An operator whose coordinator knows some lines."""

    lines: tuple[LineView, ...]
    asked: list[tuple[str, Any]] = field(default_factory=list)
    fleet: str = "sojourn"

    def rollout(self, _forward, _back, _release, _shares, rules, *, undo: bool) -> LineView:
        self.asked.append(("rollout", (rules, undo)))
        return view("wine", 7, 0, 0)

    def releases(self, line: str | None = None) -> tuple[LineView, ...]:
        return self.lines

    def job(self, name: str) -> JobView:
        return JobView(name, "fedavg", "mlp", "done", "", 1, 1, "train", 0.5, 2)

    def command(self, words: str) -> str:
        return f"sojourn {words} --fleet there"

    def make_release(self, job: str, wanted, which=None) -> ReleaseFile:
        self.asked.append((job, wanted))
        return release()


def view(line: str, version: int, before: int, serves: int) -> LineView:
    return LineView(
        line, "rolled-back", "", 4, version, before, serves, None, (1.0,), 1, {}, RolloutPlan(HealthRules(), undo=True)
    )


def test_two_complaints_are_required_by_default(monkeypatch) -> None:
    known = Known(())
    monkeypatch.setattr(options, "_connection", lambda **_given: nullcontext(known))
    create()
    run("key", "release.key")
    run("rollout", "wine-7.release", "--key", "release.key")
    run("rollout", "wine-7.release", "--key", "release.key", "--quorum", "5", "--halt")
    assert known.asked == [("rollout", (HealthRules(), True)), ("rollout", (HealthRules(quorum=5), False))]
    assert [rules.quorum for _, (rules, _) in known.asked] == [2, 5]


@pytest.mark.parametrize(
    ("lines", "version"),
    [((), 1), ((view("wine", 5, 4, 4), view("beer", 9, 8, 9)), 6), ((view("wine", 3, 12, 3),), 13)],
)
def test_next_version_is_highest_known_plus_one(lines, version: int, monkeypatch) -> None:
    known = Known(lines)

    @contextmanager
    def connection(**_given: object):
        yield known

    monkeypatch.setattr(options, "_connection", connection)
    run("create", "first", "--line", "wine", "--int8", "--max-loss", "0.02", "--notes", "n")
    ((job, wanted),) = known.asked
    assert (job, wanted.line, wanted.version) == ("first", "wine", version)
    assert (wanted.encoding, wanted.max_loss, wanted.notes) == ("int8", 0.02, "n")
    assert read_release(Path("wine-7.release")).card.version == 7
    run("create", "first", "--line", "wine", "--version", "40", "-o", "x.release")
    assert known.asked[1][1].version == 40
    assert Path("x.release").exists()
