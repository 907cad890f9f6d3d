"""Targets of each kind of task, and the errors for files that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.data.labels import label_names
from sojourn.data.samples import content_of, fit
from sojourn.data.source import DataSettings, load_data
from sojourn.errors import DataError
from tests.sojourn.data.tasks import form_of

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import SampleForm, Samples

X = np.arange(8, dtype=np.float32).reshape(4, 2)
ONE, TWO = form_of("regression", (2,), (1,)), form_of("regression", (2,), (2,), names=("t", "load"))


def fitted(y: Any, form: SampleForm, names: tuple[str, ...] = (), part: Any = "train") -> Samples:
    content = content_of(X, None if y is None else np.asarray(y), names, "file.npz", "the array y")
    return fit(content, form, part)


@pytest.mark.parametrize("y", [[0.5, 1, -2, 4], [[0.5], [1], [-2], [4]]])
def test_quantity_is_float32_in_target_shape(y: Any) -> None:
    samples = fitted(y, ONE)
    assert samples.y.dtype == np.float32
    assert samples.y.tolist() == [[0.5], [1], [-2], [4]]
    assert fitted(y, form_of("regression", (2,), ())).y.tolist() == [0.5, 1, -2, 4]
    assert fitted(y, form_of("regression", (2,))).y.shape == (4, 1)


def test_integers_and_booleans_are_valid_quantities() -> None:
    assert fitted([3, 1, 2, 1], ONE).y.tolist() == [[3], [1], [2], [1]]
    assert fitted([True, False, True, True], ONE).y.ravel().tolist() == [1, 0, 1, 1]


def test_samples_with_missing_targets_are_skipped() -> None:
    samples = fitted([[1, 2], [np.nan, 2], [3, np.inf], [1e300, 0]], TWO)
    assert samples.y.tolist() == [[1, 2]]
    assert samples.x.tolist() == [[0, 1]]
    assert samples.kept.tolist() == [True, False, False, False]
    assert samples.skipped == ("3 samples whose target is missing, NaN or infinite",)
    with pytest.raises(DataError, match=r"file\.npz has no sample that can be used \(4 samples whose target"):
        fitted([[np.nan, 1]] * 4, TWO)


@pytest.mark.parametrize(
    ("y", "form", "message"),
    [
        ([1, 2, 3, 4], TWO, "has targets of 1 numbers .*the job predicts 't', 'load': set these with data.targets"),
        (np.ones((4, 3)), ONE, "has targets of 3 numbers .*the job predicts 1 number for each sample"),
        (["a", "b", "c", "d"], TWO, "has labels such as 'a' .*the job predicts 't', 'load'"),
        (None, TWO, "the job predicts 't', 'load': put them into the array y|The job predicts"),
    ],
)
def test_targets_of_wrong_width_or_missing_are_rejected(y: Any, form: SampleForm, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted(y, form)


LABELS = form_of("multilabel", (2,), (3,), classes=("red", "round", "big"))
FLAGS = [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]


def test_multi_label_targets_are_read_from_flags_and_text() -> None:
    samples = fitted(FLAGS, LABELS)
    assert samples.y.dtype == np.float32
    assert samples.y.tolist() == FLAGS
    turned = fitted(FLAGS, LABELS, ("big", "round", "red"))
    assert turned.y.tolist() == [row[::-1] for row in FLAGS]
    named = fitted(["red;big", " ", "big|round;red", "round"], LABELS)
    assert named.y.tolist() == FLAGS


def test_unknown_labels_are_reported_and_samples_kept() -> None:
    samples = fitted(["red;new", "", "old", "round"], LABELS)
    assert samples.y.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert samples.skipped == ("labels that the job does not list: 'old', 'new'",)


@pytest.mark.parametrize(
    ("y", "names", "message"),
    [
        (np.ones((4, 2)), (), "has 2 columns of labels, but the job has 3: 'red', 'round', 'big'"),
        (FLAGS, ("red", "round", "tall"), "has no label 'big', only 'red', 'round', 'tall'"),
        (np.array(FLAGS) * 2, (), "has the label flag 2; expected 0 or 1"),
        (None, (), "add a column of 0 and 1 for each of 'red', 'round', 'big'"),
    ],
)
def test_invalid_multi_label_targets_are_rejected(y: Any, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted(y, LABELS, names)


def test_label_names_are_derived_if_not_listed() -> None:
    assert label_names(content_of(X, np.array(["b;a", "", "c|a", "b"]), (), "f")) == ("a", "b", "c")
    assert label_names(content_of(X, np.array(FLAGS), ("u", "v", "w"), "f")) == ("u", "v", "w")
    assert label_names(content_of(X, np.array(FLAGS), (), "f")) == ("0", "1", "2")


PUMP = form_of("reconstruction", (2,), normal=("normal", "0"))


def test_reconstruction_needs_no_labels() -> None:
    samples = fitted(None, PUMP)
    assert samples.y.tolist() == [0, 0, 0, 0]
    assert samples.x.tolist() == X.tolist()
    assert fitted([0.5, 1, 2, 3], PUMP).y.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("y", [["Normal", "leak", "normal", "worn"], [0, 1, 0, 2], [0.0, 3.0, 0.0, 1.0]])
def test_faulty_samples_are_excluded_from_training_not_from_test(y: Any) -> None:
    samples = fitted(y, PUMP)
    assert samples.x.tolist() == X[[0, 2]].tolist()
    assert samples.y.tolist() == [0, 0]
    assert samples.skipped[0].startswith("2 samples labelled as faulty: ")
    tested = fitted(y, PUMP, part="test")
    assert tested.y.tolist() == [0, 1, 0, 1]
    assert tested.skipped == ()


def test_all_faulty_samples_are_rejected_for_training() -> None:
    with pytest.raises(DataError, match="has no sample that is labelled as normal, only 'a', 'b'"):
        fitted(["a", "b", "a", "b"], PUMP)
    assert fitted(["a", "b", "a", "b"], PUMP, part="test").y.tolist() == [1, 1, 1, 1]
    assert len(fitted(["a", "b", "a", "b"], form_of("reconstruction", (2,)))) == 4


def test_npz_without_labels_is_valid_only_for_reconstruction(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=X)
    assert len(load_data(DataSettings(path=str(path)), PUMP)) == 4
    with pytest.raises(DataError, match=r"has no array 'y_train' .found: x_train.*The job predicts 1 number"):
        load_data(DataSettings(path=str(path)), ONE)
    with pytest.raises(DataError, match=r"has no array 'kind' .found: x_train"):
        load_data(DataSettings(path=str(path), y="kind"), PUMP)
