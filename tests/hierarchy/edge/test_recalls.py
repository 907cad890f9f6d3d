"""Withdrawals go to every device of a site: connected ones, and those that connect later."""

from __future__ import annotations

from hierarchy.edge.forwarding import MAX_WITHDRAWALS, Recalls
from sojourn.node.machine import Send
from sojourn.protocol.mandates import Recall
from sojourn.protocol.topics import Address
from tests.sojourn.protocol.mandates import withdrawn


def test_withdrawal_is_sent_to_current_and_later_devices() -> None:
    recalls, message = Recalls(), Recall(withdrawn())
    assert recalls.for_device("late") == []
    sent = recalls.take(message, ["a", "b"])
    assert sent == [Send(Address("device", name), message) for name in ("a", "b")]
    recalls.take(message, [])  # repeated
    assert recalls.for_device("late") == [Send(Address("device", "late"), message)]


def test_remembered_withdrawals_are_bounded() -> None:
    recalls = Recalls()
    for number in range(MAX_WITHDRAWALS + 9):
        recalls.take(Recall(withdrawn(job=f"job-{number}")), [])
    kept = [effect.message.withdrawal.read().job for effect in recalls.for_device("d")]  # type: ignore[union-attr]
    assert (len(kept), kept[0]) == (MAX_WITHDRAWALS, "job-9")
