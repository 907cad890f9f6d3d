"""Tokens: sequences and their next tokens, text as bytes, and tokens outside the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.data.samples import content_of, fit
from sojourn.data.source import DataSettings, describe, load_data
from sojourn.errors import DataError
from tests.sojourn.data.tasks import form_of

if TYPE_CHECKING:
    from pathlib import Path

FORM = form_of("tokens", (3,), (3,), dtype="int64", output=(3, 10))
TEXT = form_of("tokens", (3,), (3,), dtype="int64", output=(3, 256))


def both(samples: Any) -> list[list[list[int]]]:
    return [[x.tolist(), y.tolist()] for x, y in zip(samples.x[:], samples.y[:], strict=True)]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_rows_yield_sequences_and_their_next_tokens(dtype: Any) -> None:
    samples = fit(content_of(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype), None, (), "f"), FORM)
    assert both(samples) == [[[1, 2, 3], [2, 3, 4]], [[5, 6, 7], [6, 7, 8]]]
    assert samples.x.dtype == samples.y.dtype == np.int64


def test_long_stream_is_cut_end_to_end() -> None:
    samples = fit(content_of(np.arange(9) % 10, None, (), "f"), FORM)
    assert both(samples) == [[[0, 1, 2], [1, 2, 3]], [[3, 4, 5], [4, 5, 6]]]
    longer = fit(content_of(np.arange(16).reshape(2, 8) % 10, None, (), "f"), FORM)
    assert [x for x, _ in both(longer)] == [[0, 1, 2], [3, 4, 5], [8, 9, 0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([1, 2, 3, 10]), "has the token 10, but the job's vocabulary ranges from 0 to 9"),
        (np.array([1, -1, 3, 4]), "has the token -1"),
        (np.array([1, 2.5, 3, 4]), "tokens must be whole numbers"),
        (np.array([1, np.nan, 3, 4]), "tokens must be whole numbers"),
        (np.array([1, 2, 3]), "longest sequence has 3 tokens, but the model needs 3 and the next one"),
        (np.zeros((2, 2, 4), int), r"has an array of shape \(2, 2, 4\)"),
        (np.array([], int), "has no samples"),
        (np.array(["a", "b", "c", "d"]), "tokens must be whole numbers"),
    ],
)
def test_invalid_tokens_are_rejected(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit(content_of(x, None, (), "f"), FORM)


def test_text_is_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes("aé\nbcd".encode())
    assert describe(DataSettings(path=str(path))) == "text log.txt"
    samples = load_data(DataSettings(path=str(path)), TEXT)
    assert both(samples) == [[[97, 195, 169], [195, 169, 10]], [[10, 98, 99], [98, 99, 100]]]
    with pytest.raises(DataError, match="has the token 195"):
        load_data(DataSettings(path=str(path)), FORM)


def test_sequences_do_not_span_text_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_bytes(b"abcde")
    (tmp_path / "b.txt").write_bytes(b"fghi")
    (tmp_path / "empty.txt").touch()
    samples = load_data(DataSettings(path=str(tmp_path), format="text"), TEXT)
    assert [bytes(x) for x in samples.x[:].astype(np.uint8)] == [b"abc", b"fgh"]
    assert samples.machine is not None
    assert samples.machine.tolist() == [0, 1]


@pytest.mark.parametrize("content", [b"", b"ab"])
def test_too_short_texts_are_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"has no text|longest sequence has 2 tokens"):
        load_data(DataSettings(path=str(tmp_path / "x.txt")), TEXT)


def test_csv_file_of_tokens_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("1,2,3,4\n5,6,7,8\n", encoding="utf-8")
    assert both(load_data(DataSettings(path=str(path)), FORM)) == [[[1, 2, 3], [2, 3, 4]], [[5, 6, 7], [6, 7, 8]]]


def test_precut_sequences_are_used_unchanged() -> None:
    x, y = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[2, 3, 9], [5, 6, 0]])
    assert both(fit(content_of(x, y, (), "f"), FORM)) == [[[1, 2, 3], [2, 3, 9]], [[4, 5, 6], [5, 6, 0]]]
    with pytest.raises(DataError, match="not whole numbers from 0 to 9"):
        fit(content_of(x, y + 5, (), "f"), FORM)
