"""Scikit-learn's diabetes: how an illness went on in a year, from ten measurements of each patient; regression."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

from fleet_sim.datasets.data_set import DataSet, every_fifth
from sojourn.errors import DataError

FEATURES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
SEX = FEATURES.index("sex")


def make_diabetes(seed: int = 0) -> DataSet:
    """442 patients (Efron et al., 2004), features standardised; domains are the two sexes. There is no randomness."""
    del seed
    # From its file: importing sklearn takes two seconds.
    folder = distribution("scikit-learn").locate_file("sklearn/datasets/data")
    try:
        raw = np.loadtxt(str(folder / "diabetes_data_raw.csv.gz"))
        target = np.loadtxt(str(folder / "diabetes_target.csv.gz"))
    except OSError as error:
        raise DataError(f"scikit-learn's diabetes cannot be read ({error}): install scikit-learn again") from error
    x = ((raw - raw.mean(axis=0)) / raw.std(axis=0)).astype(np.float32)
    y = target.astype(np.float32)[:, None]
    sex = raw[:, SEX].astype(np.int64)
    whole = DataSet("diabetes", x, y, x[:0], y[:0], (), domains=sex, kind="regression", names=("progression",))
    return every_fifth(whole)
