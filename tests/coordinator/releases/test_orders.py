"""The two orders of a rollout, and its stages as a person writes them."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.releases.file import ReleaseFile
from coordinator.releases.orders import orders_for, shares_of, worse_of
from sojourn.errors import ConfigError
from sojourn.protocol.release import Goods, LineView, Order, Parcel, SignedOrder
from sojourn.protocol.signing import Signer
from tests.coordinator.releases.test_file import release

OLD = Goods(Parcel(b"5" * 32, 5), Parcel(b"6" * 32, 5))
RELEASE = ReleaseFile(msgspec.structs.replace(release().card, line="digits", version=4), b"graph", b"card")
GOODS = RELEASE.goods
KNOWN = LineView("digits", "done", "", 6, 3, 2, 3, OLD, (1.0,), 1, {})


@pytest.fixture
def signer(tmp_path) -> Signer:
    return Signer.generate(tmp_path / "key")


def said(signed: SignedOrder) -> Order:
    order = signed.read()
    assert order is not None
    return order


def test_a_first_release_is_undone_by_serving_nothing(signer: Signer) -> None:
    forward, back = orders_for(RELEASE, None, "f", signer)
    assert forward.read() == Order("f", "digits", 1, 4, GOODS)
    assert back.read() == Order("f", "digits", 2, 0, None, rollback=True)
    assert forward.signed_by(signer.public)
    assert back.signed_by(signer.public)


def test_a_later_release_is_undone_by_what_the_fleet_serves(signer: Signer) -> None:
    forward, back = (said(each) for each in orders_for(RELEASE, KNOWN, "f", signer))
    assert (forward.serial, forward.version, forward.goods) == (7, 4, GOODS)
    assert back == Order("f", "digits", 8, 3, OLD, rollback=True)


@pytest.mark.parametrize(("after", "first"), [(3, 7), (6, 7), (20, 21)])
def test_serials_follow_what_devices_have_seen(signer: Signer, after: int, first: int) -> None:
    forward, back = (said(each) for each in orders_for(RELEASE, KNOWN, "f", signer, after=after))
    assert (forward.serial, back.serial) == (first, first + 1)


@pytest.mark.parametrize(
    ("text", "shares"),
    [("5%,25%,100%", (0.05, 0.25, 1.0)), ("100%", (1.0,)), ("0.1, 1", (0.1, 1.0)), (" 2.5% ,100% ", (0.025, 1.0))],
)
def test_stages_are_shares(text: str, shares: tuple[float, ...]) -> None:
    assert shares_of(text) == pytest.approx(shares)


@pytest.mark.parametrize("text", ["", "5%", "50%,20%,100%", "5%,5%,100%", "0%,100%", "110%", "x,100%", "nan,100%"])
def test_stages_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--stages"):
        shares_of(text)


def test_how_much_worse_a_figure_may_become() -> None:
    assert [worse_of(text) for text in ("10%", " 0.1 ", "0", "250%")] == [0.1, 0.1, 0.0, 2.5]
    for text in ("", "much", "-1%", "nan", "inf"):
        with pytest.raises(ConfigError, match=r"write 10%, or 0\.1"):
            worse_of(text)
