"""Series for a forecast: order, gaps, machines, channels, and files without a complete window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.data.samples import content_of, fit
from sojourn.data.series import parse_time
from sojourn.data.source import DataSettings, load_data
from sojourn.errors import DataError
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

THREE = form_of("forecast", (2, 1), (1, 1), window=Window(2, 1))
LOAD = form_of("forecast", (2, 2), (1, 1), window=Window(2, 1), names=("load",))


def csv(folder: Path, text: str) -> str:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def load(folder: Path, text: str, form: Any = THREE, **settings: Any) -> Samples:
    return load_data(DataSettings(path=csv(folder, text), **settings), form)


def seen(samples: Samples) -> list[list[float]]:
    """Return each window's input numbers, then its target numbers."""
    return [[*x.ravel(), *y.ravel()] for x, y in zip(samples.x[:], samples.y[:], strict=True)]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (1, 5, 1)])
def test_array_is_cut_into_windows(shape: tuple[int, ...]) -> None:
    samples = fit(content_of(np.arange(5.0).reshape(shape), None, (), "f"), THREE)
    assert seen(samples) == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert samples.y.dtype == np.float32
    assert samples.y[:].shape == (3, 1, 1)
    x, y = samples.batch(np.array([2, 0]), "float32")
    assert x.tolist() == [[[2], [3]], [[0], [1]]]
    assert y.tolist() == [[[4]], [[2]]]


def test_windows_do_not_mix_series_of_an_array() -> None:
    samples = fit(content_of(np.arange(8.0).reshape(2, 4, 1), None, (), "f"), THREE)
    assert seen(samples) == [[0, 1, 2], [1, 2, 3], [4, 5, 6], [5, 6, 7]]
    assert samples.machine is not None
    assert samples.machine.tolist() == [0, 0, 1, 1]
    assert samples.machines == ("0", "1")


def test_window_applies_stride_horizon_and_flat_input() -> None:
    form = form_of("forecast", (3,), (2, 1), window=Window(3, 2, 2))
    samples = fit(content_of(np.arange(9), None, (), "f"), form)
    assert seen(samples) == [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]
    assert samples.x[:].shape == (3, 3)


def test_missing_values_split_a_series() -> None:
    x = np.array([0, 1, 2, np.nan, 4, 5, 6, 7])
    samples = fit(content_of(x, None, (), "f"), THREE)
    assert seen(samples) == [[0, 1, 2], [4, 5, 6], [5, 6, 7]]
    assert samples.skipped == ("windows over 1 rows with missing values",)


def test_windows_share_memory_with_their_series() -> None:
    series = np.zeros((100_000, 4), np.float32)
    form = form_of("forecast", (1000, 4), (1, 4), window=Window(1000, 1))
    samples = fit(content_of(series, None, (), "f"), form)
    assert len(samples) == 99_000
    assert np.shares_memory(series, samples.x.steps)  # type: ignore[attr-defined]
    assert samples.batch(np.arange(2), "float32")[0].nbytes == 2 * 16_000


def test_csv_rows_are_time_steps(tmp_path: Path) -> None:
    assert seen(load(tmp_path, "v\n1\n2\n3\n4\n")) == [[1, 2, 3], [2, 3, 4]]
    assert seen(load(tmp_path, "1\n2\n3\n")) == [[1, 2, 3]]


def test_predicted_channel_is_selected_by_name(tmp_path: Path) -> None:
    rows = "1,10\n2,20\n3,30\n"
    assert seen(load(tmp_path, "temp,load\n" + rows, LOAD)) == [[1, 10, 2, 20, 30]]
    assert seen(load(tmp_path, "load,temp\n" + rows, LOAD)) == [[1, 10, 2, 20, 3]]
    assert seen(load(tmp_path, "kw,temp\n" + rows, LOAD, targets=("temp",))) == [[1, 10, 2, 20, 30]]
    assert seen(load(tmp_path, rows, LOAD, targets=(1,))) == [[1, 10, 2, 20, 3]]
    with pytest.raises(DataError, match="no channel 'load', which the job predicts, only 'temp', 'kw': set it"):
        load(tmp_path, "temp,kw\n" + rows, LOAD)
    with pytest.raises(DataError, match=r"data.targets names 2 columns"):
        load(tmp_path, "temp,kw\n" + rows, LOAD, targets=("temp", "kw"))


TIMES = "time,v\n2026-05-01 00:03,4\n2026-05-01 00:00,1\n2026-05-01T00:01Z,2\n2026-05-01 00:02:00+00:00,3\n"


def test_rows_are_sorted_by_time(tmp_path: Path) -> None:
    assert seen(load(tmp_path, TIMES, time="time")) == [[1, 2, 3], [2, 3, 4]]
    assert seen(load(tmp_path, TIMES, time=1, header=True)) == [[1, 2, 3], [2, 3, 4]]
    assert seen(load(tmp_path, TIMES, ignore=("time",))) == [[4, 1, 2], [1, 2, 3]]


def test_no_window_crosses_a_gap(tmp_path: Path) -> None:
    text = "t,v\n" + "".join(f"{t},{t}\n" for t in (0, 1, 2, 3, 5, 6, 7, 7, 7.4))
    samples = load(tmp_path, text, time="t")
    assert seen(samples) == [[0, 1, 2], [1, 2, 3], [5, 6, 7], [6, 7, np.float32(7.4)]]
    assert samples.skipped == ("1 rows with a repeated time", "windows over 1 gaps in time")


def test_each_machine_is_a_separate_series(tmp_path: Path) -> None:
    text = "m,t,v\n" + "".join(f"{m},{t},{10 * at + t}\n" for t in range(4) for at, m in enumerate(("b", "a")))
    samples = load(tmp_path, text, time="t", series="m")
    assert seen(samples) == [[0, 1, 2], [1, 2, 3], [10, 11, 12], [11, 12, 13]]
    assert samples.machines == ("b", "a")
    assert samples.machine is not None
    assert samples.machine.tolist() == [0, 0, 1, 1]
    assert seen(load(tmp_path, text, series="m", ignore=("t",))) == seen(samples)


def test_each_machine_has_its_own_sampling_interval(tmp_path: Path) -> None:
    slow = "".join(f"slow,{60 * t},{t}\n" for t in range(4))
    fast = "".join(f"fast,{t},{t}\n" for t in range(50))
    assert len(load(tmp_path, "m,t,v\n" + fast + slow, time="t", series="m")) == 48 + 2


def test_unreadable_row_splits_the_series(tmp_path: Path) -> None:
    samples = load(tmp_path, "v\n1\n2\n3\nbroken\n5\n6,6\n7\n8\n9\n")
    assert seen(samples) == [[1, 2, 3], [7, 8, 9]]
    assert samples.skipped[:2] == ("line 5: 'broken' is not a number", "line 7: 2 columns instead of 1")
    timed = load(tmp_path, "t,v\n0,1\n1,2\n2,3\nnever,4\n4,5\n5,6\n6,7\n", time="t")
    assert seen(timed) == [[1, 2, 3], [5, 6, 7]]
    assert timed.skipped[0] == "line 5: 'never' is not a time"


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("v\n1\n2\n", {}, "longest series without a gap has 2 steps, but a window needs 2 input steps and 1"),
        ("t,v\n0,1\n1,2\n9,3\n10,4\n", {"time": "t"}, "longest series without a gap has 2 steps"),
        ("a,b\n1,2\n3,4\n5,6\n", {}, r"2 channels \('a', 'b'\), so 2 steps have 4 numbers, but the model expects"),
        ("t,v\nx,1\ny,2\n", {"time": "t"}, "'x' is not a time|longest series"),
        ("when,v\nmon,1\ntue,2\n", {}, "'when' holds text where numbers are needed: exclude it with"),
        ("v\n1\n", {"time": "t"}, "no column 't'"),
        ("v\n1\n", {"ignore": ("v",)}, "the settings exclude all 1 columns"),
        ("", {}, "is empty"),
    ],
)
def test_files_without_a_complete_window_are_rejected(tmp_path: Path, text: str, settings: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text, **settings)


def test_arrays_of_other_shape_or_type_are_rejected() -> None:
    for x in (np.zeros((2, 2, 2, 2)), np.array(["a", "b"])):
        with pytest.raises(DataError, match="a series must be numbers of the shape"):
            fit(content_of(x, None, (), "f"), THREE)


def test_npz_file_may_name_its_channels(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(6.0).reshape(3, 2), channels=np.array(["load", "temp"]))
    assert seen(load_data(DataSettings(path=str(path)), LOAD)) == [[0, 1, 2, 3, 4]]
    np.savez(path, x=np.arange(6.0).reshape(3, 2))
    with pytest.raises(DataError, match="no channel 'load', which the job predicts, but 2 unnamed ones"):
        load_data(DataSettings(path=str(path)), LOAD)


@pytest.mark.parametrize(
    ("cell", "seconds"), [("5", 5), (" 1e3 ", 1000), ("1970-01-01", 0), ("1970-01-02T00:00:01+01:00", 82801)]
)
def test_time_formats_are_parsed(cell: str, seconds: float) -> None:
    assert parse_time(cell) == seconds


@pytest.mark.parametrize("cell", ["", "nan", "inf", "noon", "0000-00-00", "9" * 400])
def test_invalid_times_are_rejected(cell: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(cell)


def test_precut_windows_are_used_unchanged() -> None:
    x, y = np.arange(8.0).reshape(4, 2, 1), np.array([2.0, 4, np.nan, 8]).reshape(4, 1, 1)
    samples = fit(content_of(x, y, (), "f"), THREE)
    assert samples.x.tolist() == x[[0, 1, 3]].tolist()
    assert samples.y.tolist() == [[[2]], [[4]], [[8]]]
    assert samples.skipped == ("1 samples whose target is missing, NaN or infinite",)
