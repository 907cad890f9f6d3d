"""Sentences of a made-up language in six dialects; tokens."""

from __future__ import annotations

import numpy as np

from fleet_sim.datasets.data_set import DataSet
from sojourn.randomness import generator

WORDS, LONG = 32, 16
"""How many tokens there are, and how many of a sentence a model sees."""
DIALECTS, SPEAKERS = 6, 36
SENTENCES, TESTED = 80, 20
"""Of each speaker: to train on, and for testing."""
OWN = 0.5
"""How much of what follows a word is the dialect's own; the rest all dialects share."""


def make_dialects(seed: int = 0) -> DataSet:
    """Sequences of 16 tokens out of 32; the target is the sequence one token on.

    users are the speakers, domains their dialects. Which word may follow which is a grammar of four words for each,
    half of it common to all, half the dialect's own.
    """
    draw = generator(seed, "dialects")
    common, own = _grammar(draw, 1), _grammar(draw, DIALECTS)
    follows = np.cumsum((1.0 - OWN) * common + OWN * own, axis=2)
    speaker = np.repeat(np.arange(SPEAKERS), SENTENCES + TESTED)
    said = _sentences(follows, speaker % DIALECTS, draw)
    tested = np.tile(np.arange(SENTENCES + TESTED) >= SENTENCES, SPEAKERS)
    x, y = said[:, :-1], said[:, 1:]
    users = speaker[~tested]
    words = tuple(f"w{at}" for at in range(WORDS))
    return DataSet(
        "dialects", x[~tested], y[~tested], x[tested], y[tested], words, users, users % DIALECTS, kind="tokens"
    )


def _grammar(draw: np.random.Generator, count: int) -> np.ndarray:
    """How probable each word is after each word: four words may follow one, in shares that are drawn."""
    rest = draw.random((count, WORDS, WORDS))
    may = np.argsort(rest, axis=2)[:, :, :4]
    grammar = np.zeros((count, WORDS, WORDS))
    np.put_along_axis(grammar, may, draw.dirichlet(np.ones(4), (count, WORDS)), axis=2)
    return grammar


def _sentences(follows: np.ndarray, dialect: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A sentence for each entry of `dialect`, word by word, all at once; `follows` holds sums of shares."""
    said = np.empty((len(dialect), LONG + 1), np.int64)
    said[:, 0] = draw.integers(0, WORDS, len(dialect))
    for at in range(1, LONG + 1):
        rows = follows[dialect, said[:, at - 1]]
        said[:, at] = np.minimum((draw.random((len(dialect), 1)) >= rows).sum(axis=1), WORDS - 1)
    return said
