"""The subscribers of a topic, for any number of filters."""

from __future__ import annotations

import random

from sojourn.links.memory import Subscriptions


def fits(wanted: str, topic: str) -> bool:
    """Match a filter level by level."""
    pairs = list(zip(wanted.split("/"), topic.split("/"), strict=False))
    return wanted.count("/") == topic.count("/") and all(w in ("+", t) for w, t in pairs)


def test_topic_matches_exact_and_wildcard_filters() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("inbox", ["f/device/a/in/+"])
    those.add("watcher", ["f/edge/e/in/+", "f/device/+/state"])
    assert those.matching("f/device/a/in/e") == ["inbox"]
    assert those.matching("f/device/b/in/e") == []
    assert those.matching("f/device/a/in") == []
    assert those.matching("f/device/a/in/e/more") == []
    assert those.matching("f/device/b/state") == ["watcher"]
    assert those.matching("f/edge/b/state") == []


def test_each_subscriber_matches_once_in_subscription_order() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("second", ["a/+"])
    those.add("first", ["+/b", "a/b", "a/+"])
    assert those.matching("a/b") == ["second", "first"]
    those.remove("second")
    those.add("second", ["+/+"])
    assert those.matching("a/b") == ["first", "second"]


def test_removed_subscriber_is_not_matched() -> None:
    those: Subscriptions[str] = Subscriptions()
    those.add("one", ["a/+", "a/b", "a/b"])
    those.add("other", ["a/+"])
    assert those.remove("one")
    assert not those.remove("one")
    assert those.matching("a/b") == ["other"]


def test_index_matches_same_subscribers_as_linear_search() -> None:
    draw = random.Random(3)
    words = ["a", "b", "+"]
    filters = {who: ["/".join(draw.choices(words, k=draw.randint(1, 3))) for _ in range(2)] for who in range(40)}
    those: Subscriptions[int] = Subscriptions()
    for who, wanted in filters.items():
        those.add(who, wanted)
    for _ in range(100):
        topic = "/".join(draw.choices(words[:2], k=draw.randint(1, 3)))
        assert those.matching(topic) == [who for who, wanted in filters.items() if any(fits(w, topic) for w in wanted)]
