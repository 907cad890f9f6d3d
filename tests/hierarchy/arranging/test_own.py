"""Arrangers that users wrote: what they may return, and the error when it cannot be followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hierarchy.arrangers import roll as old_names
from hierarchy.arranging import candidates as new_names
from hierarchy.arranging.arrangement import ArrangeContext, Arranged, Candidates, ClientSet, arrange, check
from sojourn.errors import ConfigError, JobError
from sojourn.parts import OwnArranger

CANDIDATES = Candidates(("a", "b", "c", "d"), {"n": frozenset("abc"), "s": frozenset("cd")})


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def own(name: str, **settings: Any) -> OwnArranger:
    return OwnArranger(part=f"own_examples:{name}", settings=settings)


def test_it_sees_the_candidates_the_context_and_its_settings() -> None:
    pairs = (ClientSet("n", ("a", "b")), ClientSet("n", ("c",)))
    assert check(own("Pairs"), CANDIDATES, ArrangeContext(1)) is None
    assert arrange(own("Pairs"), CANDIDATES, ArrangeContext(1, memo={"x": (1,)})) == Arranged(pairs, {"x": (1,)})
    assert arrange(own("Pairs"), CANDIDATES, ArrangeContext(1, sets=1)).sets == pairs[:1]
    assert arrange(own("Pairs", backwards=True), CANDIDATES, ArrangeContext(1)).sets == (
        ClientSet("n", ("c", "b")),
        ClientSet("n", ("a",)),
    )


def test_the_names_that_arrangers_imported_before_are_the_same_classes() -> None:
    assert old_names.ClientSet is new_names.ClientSet
    assert old_names.Arranged is new_names.Arranged
    assert old_names.Roll is new_names.Candidates
    assert old_names.Turn is new_names.ArrangeContext


def test_an_arranger_written_against_the_old_names_runs() -> None:
    sets = arrange(own("WrittenBefore"), CANDIDATES, ArrangeContext(1, sets=1)).sets
    assert sets == (ClientSet("n", ("a", "b", "c")),)


def test_its_memo_goes_round() -> None:
    first = arrange(own("Counting"), CANDIDATES, ArrangeContext(1))
    second = arrange(own("Counting"), CANDIDATES, ArrangeContext(1, memo=first.memo))
    assert [first.sets[0].devices, second.sets[0].devices] == [("a",), ("b",)]
    assert second.memo == {"calls": (2,)}


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ([], "arranged no sets; it must return Arranged, or a list of ClientSet"),
        (7, "arranged no sets"),
        (["n"], "set 0 that own_examples:Saying arranged is a str, not a ClientSet"),
        ([("n", "a"), ("x", "a")], "set 1 .* is at x, which is no site"),
        ([("n", "")], "set 0 .* has no devices"),
        ([("n", "aba")], "set 0 .* has a device twice"),
        ([("n", "az")], "set 0 .* has z, which is no device here"),
        ([("n", "ad")], "set 0 .* has d, which does not reach n"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(sets: Any, reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        arrange(own("Saying", sets=sets), CANDIDATES, ArrangeContext(1))


def test_a_device_in_two_sets_must_be_meant() -> None:
    twice = own("Saying", sets=[("n", "ac"), ("s", "dc")])
    with pytest.raises(JobError, match="own_examples:Saying arranged c twice; if that is meant"):
        arrange(twice, CANDIDATES, ArrangeContext(1))
    meant = OwnArranger(part=twice.part, settings=twice.settings, once=False)
    assert arrange(meant, CANDIDATES, ArrangeContext(1)).sets == (
        ClientSet("n", ("a", "c")),
        ClientSet("s", ("d", "c")),
    )


def test_a_memo_must_be_numbers_by_name() -> None:
    assert arrange(own("Saying", sets=[("n", "a")], memo={"a": [1, 2]}), CANDIDATES, ArrangeContext(1)).memo == {
        "a": (1, 2)
    }
    with pytest.raises(JobError, match="the memo of own_examples:Saying must be whole numbers by device name"):
        arrange(own("Saying", sets=[("n", "a")], memo={"a": "x"}), CANDIDATES, ArrangeContext(1))


def test_a_class_that_cannot_arrange_is_refused() -> None:
    with pytest.raises(ConfigError, match="own_examples:Mute has no arrange"):
        arrange(own("Mute"), CANDIDATES, ArrangeContext(1))


def test_it_needs_a_device() -> None:
    assert (
        check(own("Pairs"), Candidates((), {}), ArrangeContext(1))
        == "own_examples:Pairs needs at least 1 device; none is here"
    )
