"""Who wants a topic, however many there are."""

from __future__ import annotations

import random

from sojourn.links.subscriptions import Subscriptions


def fits(wanted: str, topic: str) -> bool:
    """What a filter means, level by level."""
    pairs = list(zip(wanted.split("/"), topic.split("/"), strict=False))
    return wanted.count("/") == topic.count("/") and all(w in ("+", t) for w, t in pairs)


def test_a_topic_finds_those_who_named_it_or_left_its_levels_open() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("inbox", ["f/device/a/in/+"])
    those.add("watcher", ["f/edge/e/in/+", "f/device/+/state"])
    assert those.wanting("f/device/a/in/e") == ["inbox"]
    assert those.wanting("f/device/b/in/e") == []
    assert those.wanting("f/device/a/in") == []
    assert those.wanting("f/device/a/in/e/more") == []
    assert those.wanting("f/device/b/state") == ["watcher"]
    assert those.wanting("f/edge/b/state") == []


def test_each_is_found_once_and_in_the_order_in_which_they_came() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("second", ["a/+"])
    those.add("first", ["+/b", "a/b", "a/+"])
    assert those.wanting("a/b") == ["second", "first"]
    those.remove("second")
    those.add("second", ["+/+"])
    assert those.wanting("a/b") == ["first", "second"]


def test_who_has_left_is_not_found() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("one", ["a/+", "a/b", "a/b"])
    those.add("other", ["a/+"])
    assert those.remove("one")
    assert not those.remove("one")
    assert those.wanting("a/b") == ["other"]


def test_it_finds_whom_asking_everybody_finds() -> None:
    draw = random.Random(3)
    words = ["a", "b", "+"]
    filters = {who: ["/".join(draw.choices(words, k=draw.randint(1, 3))) for _ in range(2)] for who in range(40)}
    those: Subscriptions[int] = Subscriptions()
    for who, wanted in filters.items():
        those.add(who, wanted)
    for _ in range(100):
        topic = "/".join(draw.choices(words[:2], k=draw.randint(1, 3)))
        assert those.wanting(topic) == [who for who, wanted in filters.items() if any(fits(w, topic) for w in wanted)]
