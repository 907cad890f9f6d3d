"""Random files yield valid samples or a DataError, never a crash or NaN."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings, load_data
from sojourn.data.summary import survey
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

FORMS = {
    "classification": SampleForm(InputSpec((2,)), ("a", "b")),
    "regression": form_of("regression", (2,), (1,), names=("load",)),
    "several": form_of("regression", (2,), (2,)),
    "multilabel": form_of("multilabel", (2,), (2,), classes=("a", "b")),
    "reconstruction": form_of("reconstruction", (2,), normal=("ok",)),
    "forecast": form_of("forecast", (2, 2), (1, 1), window=Window(2, 1), names=("load",)),
    "tokens": form_of("tokens", (3,), (3,), dtype="int64", output=(3, 10)),
}
CELLS = ("1", "2.5", "", "nan", "inf", "-1e400", "a", "a;b", "ok", "2026-01-01", "9" * 30, "9" * 5000, "\x00", "٣", "0")
NAMES = ("a", "b", "load", "label", "time", "m", "y", "", "1")
DTYPES = (np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, "U3", "S3", np.complex64, "M8[s]")
FILES = 100


def some_text(random: random.Random) -> str:
    width, separator = random.randint(0, 5), random.choice(",;\t")
    rows = [[random.choice(NAMES) for _ in range(width)]] if random.random() < 0.7 else []
    pool = [*random.sample(CELLS, random.randint(1, 5)), "1", "2", "3"]
    rows += [
        [random.choice(pool) for _ in range(width if random.random() < 0.9 else random.randint(0, 6))]
        for _ in range(random.randint(0, 24))
    ]
    return "\n".join(map(separator.join, rows))


def some_array(random: random.Random) -> Any:
    shape = tuple(random.randint(0, 5) for _ in range(random.randint(0, 4)))
    found = np.array([random.randint(0, 9) for _ in range(int(np.prod(shape)))]).reshape(shape)
    found = found.astype(random.choice(DTYPES))
    if found.dtype.kind == "f" and found.size:
        found.flat[0] = random.choice((np.nan, np.inf, 0.5, 1.0))
    return found


def some_file(folder: Path, random: random.Random) -> str:
    match random.randint(0, 3):
        case 0:
            path = folder / "data.csv"
            path.write_text(some_text(random), encoding="utf-8")
        case 1:
            path = folder / "data.npz"
            keys = ("x", "y", "x_train", "y_train", "classes", "channels", "target_names", "x_webp")
            np.savez(path, **{key: some_array(random) for key in random.sample(keys, random.randint(0, 4))})
        case _:
            path = folder / f"data.{random.choice(('csv', 'npz', 'txt'))}"
            path.write_bytes(random.randbytes(random.randint(0, 200)))
    return str(path)


def some_settings(path: str, random: random.Random) -> DataSettings:
    choices: dict[str, tuple[Any, ...]] = {
        "time": ("time", 1, "first"),
        "series": ("m", 2),
        "ignore": (("a",), ("last",), (1,)),
        "targets": (("load",), (1, 2), ("a", "b")),
        "label": ("label", 1, "first"),
        "header": (True, False),
        "scale": ("0..1 to 0..2",),
        "target_scale": ("0..1 to 0..2",),
    }
    return DataSettings(
        path=path, **{key: random.choice(values) for key, values in choices.items() if random.random() < 0.2}
    )


def loaded(settings: DataSettings, form: SampleForm) -> Samples | str:
    """Return the samples, or the error message."""
    try:
        return load_data(settings, form)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_random_file_yields_valid_samples_or_a_data_error(tmp_path: Path, kind: str) -> None:
    draw, form = random.Random(kind), FORMS[kind]
    for _ in range(FILES):
        settings = some_settings(some_file(tmp_path, draw), draw)
        for task in (None, form.task or None):
            assert survey(settings, task).facts
        samples = loaded(settings, form)
        if isinstance(samples, str):
            assert 10 < len(samples) < 3000
            continue
        x, y = samples.batch(np.arange(len(samples)), form.input.dtype)
        assert x.shape == (len(y), *form.input.shape)
        assert len(y)
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()
        assert not form.task or form.task.target is None or y.shape[1:] == form.task.target.shape
