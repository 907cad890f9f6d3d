"""A mandate says one thing, whoever reads it, and is worth nothing without its signature."""

from __future__ import annotations

import msgspec
import pytest

from sojourn.errors import ConfigError
from sojourn.parts import Prox, SizeEstimator, Training
from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal, beyond, unlike
from sojourn.protocol.release import SignedOrder
from sojourn.protocol.signing import read_publics
from sojourn.protocol.wire import Ref, Task
from tests.sojourn.protocol.examples import TASK, D
from tests.sojourn.protocol.mandates import NOW, key_of, mandate, signed, withdrawn

KEYS = {key_of("ann").public: "ann", key_of("ben").public: "ben"}


def test_a_mandate_comes_back_as_it_was_and_names_its_signer() -> None:
    it = signed(sites=("hall",), purpose="to know cats from dogs")
    assert it.read() == mandate(sites=("hall",), purpose="to know cats from dogs")
    assert it.signer(KEYS) == key_of("ann").public
    assert signed("ben").signer(KEYS) == key_of("ben").public
    assert signed("eve").signer(KEYS) is None


@pytest.mark.parametrize("at", [0, 20, -1])
def test_one_changed_byte_is_another_mandate(at) -> None:
    it = signed()
    data = bytearray(it.mandate)
    data[at] ^= 1
    assert SignedMandate(bytes(data), it.signature).signer(KEYS) is None


def test_no_signature_for_one_thing_is_one_for_another() -> None:
    it = signed()
    assert not SignedOrder(it.mandate[:1000], it.signature).signed_by(key_of("ann").public)
    assert SignedWithdrawal(it.mandate[:1000], it.signature).signer(KEYS) is None
    back = withdrawn()
    assert SignedMandate(back.withdrawal, back.signature).signer(KEYS) is None
    assert SignedMandate(back.withdrawal, back.signature).read() is None


def test_what_this_version_does_not_know_is_not_obeyed() -> None:
    table = msgspec.msgpack.decode(signed().mandate) | {"only_on_sundays": True}
    assert SignedMandate(msgspec.msgpack.encode(table), bytes(64)).read() is None


def test_a_mandate_ends_after_it_was_issued() -> None:
    with pytest.raises(ValueError, match="end after it was issued"):
        mandate(ends=NOW)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epochs": 2}, "training.epochs 2, not 1"),
        ({"batch": 1}, "training.batch 1, not 32"),
        ({"lr": 9.0}, "training.lr 9.0, not 0.05"),
        ({"optimiser": "adam"}, "training.optimiser 'adam', not 'sgd'"),
    ],
)
def test_a_task_is_signed_to_the_letter(changes, told) -> None:
    assert unlike(mandate(), "job", D, TASK) is None
    task = msgspec.structs.replace(TASK, training=Training(**changes))
    assert told in str(unlike(mandate(), "job", D, task))


def test_other_objectives_kinds_kits_and_jobs_were_not_signed() -> None:
    for task in (
        msgspec.structs.replace(TASK, objective=Prox(mu=0.5)),
        msgspec.structs.replace(TASK, encoding="int8"),
        msgspec.structs.replace(TASK, threads=8),
        Task("estimate", Training(), TASK.objective, "float32", 1, SizeEstimator()),
    ):
        assert unlike(mandate(), "job", D, task)
    assert "another kit" in str(unlike(mandate(), "job", bytes(32), TASK))
    assert "for the job 'job'" in str(unlike(mandate(), "other", D, TASK))


def test_what_may_leave_is_named_and_measured() -> None:
    def ref(size: int) -> Ref:
        return Ref(D, size, "float32")

    assert beyond(mandate(), {"model": ref(1000)}, 0) is None
    assert (
        beyond(mandate(), {"model": ref(1001)}, 0)
        == "the vector 'model' has 1001 bytes, and 1000 may leave this device"
    )
    assert beyond(mandate(), {"extra": ref(1)}, 0) == "the vector 'extra' may not leave this device"
    assert beyond(mandate(figures=2), {}, 2) is None
    assert beyond(mandate(figures=2), {}, 3) == "3 numbers describe the data here, and 2 may leave this device"


def test_keys_stand_in_a_file_one_in_a_line(tmp_path) -> None:
    file = tmp_path / "operators.pub"
    file.write_text(f"# who may sign\n{key_of('ann').public} Ann of the lab\n\n{key_of('ben').public}\n")
    assert read_publics(file) == {
        key_of("ann").public: "Ann of the lab",
        key_of("ben").public: f"key {key_of('ben').public[:8]}",
    }
    file.write_text("nonsense ann\n")
    with pytest.raises(ConfigError, match="line 1: 'nonsense' is not the base64"):
        read_publics(file)
    file.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_publics(file)
