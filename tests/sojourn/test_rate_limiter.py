"""A token bucket for each key: a burst at once, then a steady rate."""

from __future__ import annotations

from sojourn.rate_limiter import Rate, RateLimiter

RATE = Rate(2.0, 5.0)


def test_burst_is_allowed_then_the_rate() -> None:
    limiter = RateLimiter()
    assert [limiter.allows("a", RATE, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert limiter.allows("b", RATE, 0.0)
    assert [limiter.allows("a", RATE, 1.0) for _ in range(3)] == [True] * 2 + [False]
    assert [limiter.allows("a", RATE, 1000.0) for _ in range(6)] == [True] * 5 + [False]


def test_wait_is_the_time_until_the_next_token() -> None:
    limiter = RateLimiter()
    for _ in range(5):
        assert limiter.wait("a", RATE, 0.0) == 0.0
        limiter.allows("a", RATE, 0.0)
    assert limiter.wait("a", RATE, 0.0) == 0.5
    assert limiter.wait("a", RATE, 0.25) == 0.25
    assert limiter.wait("a", RATE, 0.5) == 0.0


def test_clock_that_goes_back_gives_no_tokens() -> None:
    limiter = RateLimiter()
    assert all(limiter.allows("a", RATE, 10.0) for _ in range(5))
    assert not limiter.allows("a", RATE, 0.0)


def test_oldest_keys_are_forgotten_first() -> None:
    limiter = RateLimiter(max_keys=2)
    for key in ("a", "b", "a", "c"):
        for _ in range(5):
            limiter.allows(key, RATE, 0.0)
    assert not limiter.allows("a", RATE, 0.0)
    assert limiter.allows("b", RATE, 0.0)
