"""Tests of the two orders of a rollout, and of parsing its stages."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.releases.file import ReleaseFile
from coordinator.releases.orders import orders_for, shares_of, worse_of
from sojourn.errors import ConfigError
from sojourn.protocol.release import BlobRef, Goods, HealthRules, LineView, Order, RolloutPlan, SignedOrder
from sojourn.protocol.signing import Signer
from tests.coordinator.releases.test_file import release

OLD = Goods(BlobRef(b"5" * 32, 5), BlobRef(b"6" * 32, 5))
RELEASE = ReleaseFile(msgspec.structs.replace(release().card, line="digits", version=4), b"graph", b"card")
GOODS = RELEASE.goods
KNOWN = LineView("digits", "done", "", 6, 3, 2, 3, OLD, (1.0,), 1, {}, RolloutPlan(HealthRules(), undo=True))


@pytest.fixture
def signer(tmp_path) -> Signer:
    return Signer.generate(tmp_path / "key")


def output(signed: SignedOrder) -> Order:
    order = signed.read()
    assert order is not None
    return order


def test_first_release_rolls_back_to_nothing(signer: Signer) -> None:
    forward, back = orders_for(RELEASE, None, "f", signer)
    assert forward.read() == Order("f", "digits", 1, 4, GOODS)
    assert back.read() == Order("f", "digits", 2, 0, None, rollback=True)
    assert forward.signed_by(signer.public)
    assert back.signed_by(signer.public)


def test_later_release_rolls_back_to_the_served_one(signer: Signer) -> None:
    forward, back = (output(each) for each in orders_for(RELEASE, KNOWN, "f", signer))
    assert (forward.serial, forward.version, forward.goods) == (7, 4, GOODS)
    assert back == Order("f", "digits", 8, 3, OLD, rollback=True)


@pytest.mark.parametrize(("after", "first"), [(3, 7), (6, 7), (20, 21)])
def test_serials_follow_those_seen_by_devices(signer: Signer, after: int, first: int) -> None:
    forward, back = (output(each) for each in orders_for(RELEASE, KNOWN, "f", signer, after=after))
    assert (forward.serial, back.serial) == (first, first + 1)


@pytest.mark.parametrize(
    ("text", "shares"),
    [("5%,25%,100%", (0.05, 0.25, 1.0)), ("100%", (1.0,)), ("0.1, 1", (0.1, 1.0)), (" 2.5% ,100% ", (0.025, 1.0))],
)
def test_stages_are_parsed_as_shares(text: str, shares: tuple[float, ...]) -> None:
    assert shares_of(text) == pytest.approx(shares)


@pytest.mark.parametrize("text", ["", "5%", "50%,20%,100%", "5%,5%,100%", "0%,100%", "110%", "x,100%", "nan,100%"])
def test_invalid_stages_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="--stages"):
        shares_of(text)


def test_allowed_degradation_is_parsed() -> None:
    assert [worse_of(text) for text in ("10%", " 0.1 ", "0", "250%")] == [0.1, 0.1, 0.0, 2.5]
    for text in ("", "much", "-1%", "nan", "inf"):
        with pytest.raises(ConfigError, match=r"write 10%, or 0\.1"):
            worse_of(text)
