"""A mandate has one meaning for all readers, and is not valid without its signature."""

from __future__ import annotations

import msgspec
import pytest

from sojourn.errors import ConfigError
from sojourn.parts import Prox, SizeEstimator, Training
from sojourn.protocol.mandates import SignedMandate, SignedWithdrawal, beyond, unlike
from sojourn.protocol.release import SignedOrder
from sojourn.protocol.signing import read_publics
from sojourn.protocol.wire import Ref, Task
from tests.sojourn.protocol.examples import TASK, D
from tests.sojourn.protocol.mandates import NOW, key_of, mandate, signed, withdrawn

KEYS = {key_of("ann").public: "ann", key_of("ben").public: "ben"}


def test_mandate_round_trips_and_names_its_signer() -> None:
    it = signed(sites=("hall",), purpose="to know cats from dogs")
    assert it.read() == mandate(sites=("hall",), purpose="to know cats from dogs")
    assert it.signer(KEYS) == key_of("ann").public
    assert signed("ben").signer(KEYS) == key_of("ben").public
    assert signed("eve").signer(KEYS) is None


@pytest.mark.parametrize("at", [0, 20, -1])
def test_changed_byte_invalidates_the_signature(at) -> None:
    it = signed()
    data = bytearray(it.mandate)
    data[at] ^= 1
    assert SignedMandate(bytes(data), it.signature).signer(KEYS) is None


def test_signature_is_valid_for_one_purpose_only() -> None:
    it = signed()
    assert not SignedOrder(it.mandate[:1000], it.signature).signed_by(key_of("ann").public)
    assert SignedWithdrawal(it.mandate[:1000], it.signature).signer(KEYS) is None
    back = withdrawn()
    assert SignedMandate(back.withdrawal, back.signature).signer(KEYS) is None
    assert SignedMandate(back.withdrawal, back.signature).read() is None


def test_mandate_with_unknown_field_is_rejected() -> None:
    table = msgspec.msgpack.decode(signed().mandate) | {"only_on_sundays": True}
    assert SignedMandate(msgspec.msgpack.encode(table), bytes(64)).read() is None


def test_mandate_must_end_after_it_was_issued() -> None:
    with pytest.raises(ValueError, match="end after it was issued"):
        mandate(ends=NOW)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"epochs": 2}, "training.epochs 2, not 1"),
        ({"batch": 1}, "training.batch 1, not 32"),
        ({"lr": 9.0}, "training.lr 9.0, not 0.05"),
        ({"optimiser": "adam"}, "training.optimiser 'adam', not 'sgd'"),
    ],
)
def test_changed_training_setting_violates_the_mandate(changes, difference) -> None:
    assert unlike(mandate(), "job", D, TASK) is None
    task = msgspec.structs.replace(TASK, training=Training(**changes))
    assert difference in str(unlike(mandate(), "job", D, task))


def test_other_objective_kind_kit_or_job_violates_the_mandate() -> None:
    for task in (
        msgspec.structs.replace(TASK, objective=Prox(mu=0.5)),
        msgspec.structs.replace(TASK, encoding="int8"),
        msgspec.structs.replace(TASK, threads=8),
        Task("estimate", Training(), TASK.objective, "float32", 1, SizeEstimator()),
    ):
        assert unlike(mandate(), "job", D, task)
    assert "another kit" in str(unlike(mandate(), "job", bytes(32), TASK))
    assert "for the job 'job'" in str(unlike(mandate(), "other", D, TASK))


def test_uploads_are_limited_by_name_and_size() -> None:
    def ref(size: int) -> Ref:
        return Ref(D, size, "float32")

    assert beyond(mandate(), {"model": ref(1000)}, 0) is None
    assert (
        beyond(mandate(), {"model": ref(1001)}, 0)
        == "the vector 'model' has 1001 bytes, but only 1000 may leave this device"
    )
    assert beyond(mandate(), {"extra": ref(1)}, 0) == "the vector 'extra' may not leave this device"
    assert beyond(mandate(signature_size=2), {}, 2) is None
    assert (
        beyond(mandate(signature_size=2), {}, 3) == "3 numbers describe the data here, but only 2 may leave this device"
    )


def test_key_file_is_read_line_by_line(tmp_path) -> None:
    file = tmp_path / "operators.pub"
    file.write_text(f"# who may sign\n{key_of('ann').public} Ann of the lab\n\n{key_of('ben').public}\n")
    assert read_publics(file) == {
        key_of("ann").public: "Ann of the lab",
        key_of("ben").public: f"key {key_of('ben').public[:8]}",
    }
    file.write_text("nonsense ann\n")
    with pytest.raises(ConfigError, match="line 1: 'nonsense' is not the base64"):
        read_publics(file)
    file.write_text("# no key\n")
    with pytest.raises(ConfigError, match="contains no key"):
        read_publics(file)
