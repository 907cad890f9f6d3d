"""Withdrawals go to every device of a site: those that are here, and those that come later."""

from __future__ import annotations

from hierarchy.edge.recalls import KEPT, Recalls
from sojourn.node.machine import Send
from sojourn.protocol.mandate_messages import Recall
from sojourn.protocol.topics import Address
from tests.sojourn.protocol.mandates import withdrawn


def test_a_withdrawal_is_handed_to_all_who_are_here_and_to_those_who_come() -> None:
    recalls, message = Recalls(), Recall(withdrawn())
    assert recalls.told("late") == []
    sent = recalls.take(message, ["a", "b"])
    assert sent == [Send(Address("device", name), message) for name in ("a", "b")]
    recalls.take(message, [])  # told again
    assert recalls.told("late") == [Send(Address("device", "late"), message)]


def test_a_coordinator_that_withdraws_without_end_fills_no_memory() -> None:
    recalls = Recalls()
    for number in range(KEPT + 9):
        recalls.take(Recall(withdrawn(job=f"job-{number}")), [])
    kept = [effect.message.withdrawal.read().job for effect in recalls.told("d")]  # type: ignore[union-attr]
    assert (len(kept), kept[0]) == (KEPT, "job-9")
