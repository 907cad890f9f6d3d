"""What samples of each kind of task are compared with, and what is said of files that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.data.samples import content_of, fit
from sojourn.data.source import DataSettings, load_data
from sojourn.data.targets import label_names
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
def test_a_quantity_is_float32_in_the_targets_shape(y: Any) -> None:
    samples = fitted(y, ONE)
    assert samples.y.dtype == np.float32
    assert samples.y.tolist() == [[0.5], [1], [-2], [4]]
    assert fitted(y, form_of("regression", (2,), ())).y.tolist() == [0.5, 1, -2, 4]
    assert fitted(y, form_of("regression", (2,))).y.shape == (4, 1)


def test_whole_numbers_are_quantities_too() -> None:
    assert fitted([3, 1, 2, 1], ONE).y.tolist() == [[3], [1], [2], [1]]
    assert fitted([True, False, True, True], ONE).y.ravel().tolist() == [1, 0, 1, 1]


def test_targets_that_are_missing_leave_their_samples_out() -> None:
    samples = fitted([[1, 2], [np.nan, 2], [3, np.inf], [1e300, 0]], TWO)
    assert samples.y.tolist() == [[1, 2]]
    assert samples.x.tolist() == [[0, 1]]
    assert samples.kept.tolist() == [True, False, False, False]
    assert samples.skipped == ("3 samples whose target is missing, NaN or infinite",)
    with pytest.raises(DataError, match=r"file\.npz holds no sample that can be used \(4 samples whose target"):
        fitted([[np.nan, 1]] * 4, TWO)


@pytest.mark.parametrize(
    ("y", "form", "said"),
    [
        ([1, 2, 3, 4], TWO, "has targets of 1 numbers .*the job predicts 't', 'load': name these with data.targets"),
        (np.ones((4, 3)), ONE, "has targets of 3 numbers .*the job predicts 1 number for each sample"),
        (["a", "b", "c", "d"], TWO, "has labels such as 'a' .*the job predicts 't', 'load'"),
        (None, TWO, "the job predicts 't', 'load': put it into the array y|The job predicts"),
    ],
)
def test_targets_of_another_width_and_none_at_all(y: Any, form: SampleForm, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fitted(y, form)


LABELS = form_of("multilabel", (2,), (3,), classes=("red", "round", "big"))
FLAGS = [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]


def test_labels_of_which_several_may_hold() -> None:
    samples = fitted(FLAGS, LABELS)
    assert samples.y.dtype == np.float32
    assert samples.y.tolist() == FLAGS
    turned = fitted(FLAGS, LABELS, ("big", "round", "red"))
    assert turned.y.tolist() == [row[::-1] for row in FLAGS]
    named = fitted(["red;big", " ", "big|round;red", "round"], LABELS)
    assert named.y.tolist() == FLAGS


def test_labels_that_the_job_does_not_list_are_told_and_the_samples_stay() -> None:
    samples = fitted(["red;new", "", "old", "round"], LABELS)
    assert samples.y.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert samples.skipped == ("labels that the job does not list: 'old', 'new'",)


@pytest.mark.parametrize(
    ("y", "names", "said"),
    [
        (np.ones((4, 2)), (), "has 2 columns of labels, and the job 3: 'red', 'round', 'big'"),
        (FLAGS, ("red", "round", "tall"), "has no label 'big', only 'red', 'round', 'tall'"),
        (np.array(FLAGS) * 2, (), "has 2 where 0 or 1 is expected"),
        (None, (), "give a column of 0 and 1 for each of 'red', 'round', 'big'"),
    ],
)
def test_labels_that_do_not_fit(y: Any, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(DataError, match=said):
        fitted(y, LABELS, names)


def test_the_labels_where_nobody_lists_them() -> None:
    assert label_names(content_of(X, np.array(["b;a", "", "c|a", "b"]), (), "f")) == ("a", "b", "c")
    assert label_names(content_of(X, np.array(FLAGS), ("u", "v", "w"), "f")) == ("u", "v", "w")
    assert label_names(content_of(X, np.array(FLAGS), (), "f")) == ("0", "1", "2")


PUMP = form_of("reconstruction", (2,), normal=("normal", "0"))


def test_a_reconstruction_needs_no_labels() -> None:
    samples = fitted(None, PUMP)
    assert samples.y.tolist() == [0, 0, 0, 0]
    assert samples.x.tolist() == X.tolist()
    assert fitted([0.5, 1, 2, 3], PUMP).y.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("y", [["Normal", "leak", "normal", "worn"], [0, 1, 0, 2], [0.0, 3.0, 0.0, 1.0]])
def test_faulty_samples_are_not_trained_on_but_tested_on(y: Any) -> None:
    samples = fitted(y, PUMP)
    assert samples.x.tolist() == X[[0, 2]].tolist()
    assert samples.y.tolist() == [0, 0]
    assert samples.skipped[0].startswith("2 samples that are labelled as faulty: ")
    tested = fitted(y, PUMP, part="test")
    assert tested.y.tolist() == [0, 1, 0, 1]
    assert tested.skipped == ()


def test_samples_that_are_all_faulty() -> None:
    with pytest.raises(DataError, match="holds no sample that is labelled as normal, only 'a', 'b'"):
        fitted(["a", "b", "a", "b"], PUMP)
    assert fitted(["a", "b", "a", "b"], PUMP, part="test").y.tolist() == [1, 1, 1, 1]
    assert len(fitted(["a", "b", "a", "b"], form_of("reconstruction", (2,)))) == 4


def test_an_npz_file_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=X)
    assert len(load_data(DataSettings(path=str(path)), PUMP)) == 4
    with pytest.raises(DataError, match=r"has no array 'y_train', only x_train.*The job predicts 1 number"):
        load_data(DataSettings(path=str(path)), ONE)
    with pytest.raises(DataError, match="has no array 'kind', only x_train"):
        load_data(DataSettings(path=str(path), y="kind"), PUMP)
