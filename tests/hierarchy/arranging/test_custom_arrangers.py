"""Custom arrangers: what they may return, and the errors for invalid results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hierarchy.arranging.arrangement import ArrangeContext, Arranged, Candidates, ClientSet, arrange, check
from sojourn.errors import ConfigError, JobError
from sojourn.parts import CustomArranger

CANDIDATES = Candidates(("a", "b", "c", "d"), {"n": frozenset("abc"), "s": frozenset("cd")})


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def own(name: str, **settings: Any) -> CustomArranger:
    return CustomArranger(part=f"custom_arrangers:{name}", settings=settings)


def test_custom_arranger_gets_candidates_context_and_settings() -> None:
    pairs = (ClientSet("n", ("a", "b")), ClientSet("n", ("c",)))
    assert check(own("Pairs"), CANDIDATES, ArrangeContext(1)) is None
    assert arrange(own("Pairs"), CANDIDATES, ArrangeContext(1, memo={"x": (1,)})) == Arranged(pairs, {"x": (1,)})
    assert arrange(own("Pairs"), CANDIDATES, ArrangeContext(1, sets=1)).sets == pairs[:1]
    assert arrange(own("Pairs", backwards=True), CANDIDATES, ArrangeContext(1)).sets == (
        ClientSet("n", ("c", "b")),
        ClientSet("n", ("a",)),
    )


def test_memo_is_passed_to_the_next_round() -> None:
    first = arrange(own("Counting"), CANDIDATES, ArrangeContext(1))
    second = arrange(own("Counting"), CANDIDATES, ArrangeContext(1, memo=first.memo))
    assert [first.sets[0].devices, second.sets[0].devices] == [("a",), ("b",)]
    assert second.memo == {"calls": (2,)}


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ([], "arranged no sets; it must return Arranged, or a list of ClientSet"),
        (7, "arranged no sets"),
        (["n"], "set 0 that custom_arrangers:FromSettings arranged is a str, not a ClientSet"),
        ([("n", "a"), ("x", "a")], "set 1 .* is at x, which is not a site"),
        ([("n", "")], "set 0 .* has no devices"),
        ([("n", "aba")], "set 0 .* has a device twice"),
        ([("n", "az")], "set 0 .* has z, which is not a candidate device"),
        ([("n", "ad")], "set 0 .* has d, which does not reach n"),
    ],
)
def test_invalid_sets_are_rejected_with_a_reason(sets: Any, reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        arrange(own("FromSettings", sets=sets), CANDIDATES, ArrangeContext(1))


def test_device_in_two_sets_requires_opt_in() -> None:
    twice = own("FromSettings", sets=[("n", "ac"), ("s", "dc")])
    with pytest.raises(JobError, match="custom_arrangers:FromSettings arranged c twice; to allow this"):
        arrange(twice, CANDIDATES, ArrangeContext(1))
    meant = CustomArranger(part=twice.part, settings=twice.settings, once=False)
    assert arrange(meant, CANDIDATES, ArrangeContext(1)).sets == (
        ClientSet("n", ("a", "c")),
        ClientSet("s", ("d", "c")),
    )


def test_memo_must_map_device_names_to_integers() -> None:
    assert arrange(own("FromSettings", sets=[("n", "a")], memo={"a": [1, 2]}), CANDIDATES, ArrangeContext(1)).memo == {
        "a": (1, 2)
    }
    with pytest.raises(
        JobError, match="the memo of custom_arrangers:FromSettings must map device names to whole numbers"
    ):
        arrange(own("FromSettings", sets=[("n", "a")], memo={"a": "x"}), CANDIDATES, ArrangeContext(1))


def test_class_without_arrange_is_rejected() -> None:
    with pytest.raises(ConfigError, match="custom_arrangers:WithoutArrange lacks the methods arrange"):
        arrange(own("WithoutArrange"), CANDIDATES, ArrangeContext(1))


def test_custom_arranger_needs_a_device() -> None:
    assert (
        check(own("Pairs"), Candidates((), {}), ArrangeContext(1))
        == "custom_arrangers:Pairs needs at least 1 device; none is online"
    )
