"""Reasons of visits are words of a fixed set, whatever peers write."""

from __future__ import annotations

import pytest

from sojourn.protocol.visit_outcomes import OTHER, OUTCOMES, reason_word


@pytest.mark.parametrize(
    ("status", "sentence", "word"),
    [
        ("done", "data: anything", ""),
        ("declined", "hot: 81 °C; training resumes below 70 °C", "hot"),
        ("declined", "<script>: alert(1)", OTHER),
        ("declined", "hotter: than that", OTHER),
        ("declined", "", OTHER),
        ("lost", "no sign of life for 20 s", "silent"),
        ("lost", "over its deadline of 150 s", "deadline"),
        ("lost", "its tour is over the deadline of 40 s", "deadline"),
        ("lost", "the result could not be fetched (gone)", "unfetched"),
        ("lost", "I am a made-up reason", OTHER),
        ("refused", "the model is not finite", "gate"),
    ],
)
def test_sentence_maps_to_a_known_reason(status, sentence, word) -> None:
    assert reason_word(status, sentence) == word
    assert (status, word) in OUTCOMES


def test_reason_set_is_small() -> None:
    assert len(OUTCOMES) < 25
