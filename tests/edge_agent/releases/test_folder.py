"""The folder of a line: its files, their order, and that a power cut leaves a working release."""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from edge_agent.releases.folder import ReleaseFolder, lines
from edge_agent.releases.served import load
from sojourn.errors import InvalidBlob, StoreError
from tests.edge_agent.releases.releases_made import LINE, Shop

STEPS = ("replace", "fsync", "link", "fdopen")
"""The calls between which the power may fail; `unlink` and `chmod` are called through pathlib."""


class PowerCut(BaseException):
    """The machine has stopped."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def test_old_current_becomes_previous_and_older_files_go(shop: Shop) -> None:
    first, second, third = (shop.serve(version) for version in (1, 2, 3))
    assert shop.folder.current() == third
    assert shop.folder.previous() == second
    files = {path.name for path in shop.folder.path.iterdir()}
    assert files == {"current", "previous", third.graph, third.card, second.graph, second.card}
    assert third.graph == f"v3-{third.goods.graph.digest.hex()[:8]}.onnx"
    assert not shop.folder.holds(first)


def test_serving_the_current_release_again_changes_nothing(shop: Shop) -> None:
    shop.serve(1)
    second = shop.serve(2)
    identity, before = shop.folder.identity(), shop.folder.previous()
    shop.folder.make_current(second)
    assert shop.folder.identity() == identity
    assert shop.folder.previous() == before


def test_every_swap_changes_the_identity(shop: Shop) -> None:
    found = [shop.folder.identity()]
    for version in (1, 2, 1, 2):
        shop.serve(version)
        found.append(shop.folder.identity())
    assert found[0] is None
    assert all(first != second for first, second in pairwise(found))


def test_blob_with_wrong_digest_is_not_installed(shop: Shop) -> None:
    served = shop.served(1)
    shop.blobs.path(served.goods.graph.digest).write_bytes(b"x" * served.goods.graph.size)
    with pytest.raises(InvalidBlob, match="does not match"):
        shop.folder.place(served, shop.store / "blobs")
    assert list(shop.folder.path.iterdir()) == []


def test_missing_blob_is_named_in_the_error(shop: Shop) -> None:
    served = shop.served(1)
    shop.blobs.path(served.goods.card.digest).unlink()
    with pytest.raises(StoreError, match=served.goods.card.digest.hex()[:12]):
        shop.folder.place(served, shop.store / "blobs")


def test_release_is_hard_linked_and_outlives_its_blob(shop: Shop) -> None:
    served = shop.serve(1)
    blob, file = shop.blobs.path(served.goods.graph.digest), shop.folder.path / served.graph
    assert blob.stat().st_ino == file.stat().st_ino
    shop.blobs.sweep(set())
    assert not blob.exists()
    assert load(shop.folder, served).card.version == 1


def test_files_are_copied_when_links_are_unsupported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    served = shop.serve(1)
    file = shop.folder.path / served.graph
    assert shop.blobs.path(served.goods.graph.digest).stat().st_ino != file.stat().st_ino
    assert load(shop.folder, served).card.version == 1


def test_only_owner_and_group_can_read_releases(shop: Shop) -> None:
    shop.store.chmod(0o700)
    before = os.umask(0o077)
    try:
        served = shop.serve(1)
    finally:
        os.umask(before)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(shop.store) == 0o710
    assert [mode(path) for path in (shop.folder.path.parent, shop.folder.path)] == [0o750, 0o750]
    assert {mode(shop.folder.path / name) for name in ("current", served.graph, served.card)} == {0o640}


def test_withdrawn_line_leaves_no_files(shop: Shop) -> None:
    shop.serve(1)
    shop.serve(2)
    assert lines(shop.store) == (LINE,)
    shop.folder.withdraw()
    assert shop.folder.current() is None
    assert list(shop.folder.path.iterdir()) == []
    assert lines(shop.store) == ()
    ReleaseFolder(shop.store, "never-seen").withdraw()


@pytest.mark.parametrize("content", [b"", b"{", b'{"line": "animals"}', b"\xff" * 100])
def test_damaged_current_file_means_no_release(shop: Shop, content: bytes) -> None:
    shop.serve(1)
    (shop.folder.path / "current").write_bytes(content)
    assert shop.folder.current() is None
    shop.serve(2)
    current = shop.folder.current()
    assert current is not None
    assert current.version == 2


def test_power_cut_at_any_step_leaves_a_working_current(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.serve(1)
    shop.serve(2)
    seen, survived = set[int](), 0
    real = {name: getattr(os, name) for name in STEPS} | {"unlink": Path.unlink, "chmod": Path.chmod}

    def cut_at(fatal: int) -> bool:
        """Install with a power cut at that step; return whether it happened."""
        steps = 0

        def counted(name: str):
            def call(*args: object, **more: object) -> object:
                nonlocal steps
                steps += 1
                if steps == fatal:
                    raise PowerCut
                return real[name](*args, **more)

            return call

        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, counted(name))
            for name in ("unlink", "chmod"):
                patch.setattr(Path, name, counted(name))
            try:
                shop.folder.place(third, shop.store / "blobs")
                shop.folder.make_current(third)
            except PowerCut:
                return True
        return False

    third = shop.served(3)
    while cut_at(survived + 1):
        survived += 1
        current = shop.folder.current()
        assert current is not None
        assert load(shop.folder, current).card.version == current.version
        previous = shop.folder.previous()
        assert previous is not None
        assert load(shop.folder, previous).card.version == previous.version
        seen.add(current.version)
        shop.folder.withdraw()
        shop.serve(1)
        shop.serve(2)
    assert survived > 15
    assert seen == {2, 3}


def test_files_are_synced_before_they_are_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.serve(1)
    served = shop.served(2)
    synced, orders = set[int](), list[str]()
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        real_sync(handle)

    def replace(source: Path, target: Path) -> None:
        assert Path(source).stat().st_ino in synced
        if target.name in ("current", "previous"):
            named = [shop.folder.path / served.graph, shop.folder.path / served.card, shop.folder.path]
            assert {path.stat().st_ino for path in named} <= synced
        real_replace(source, target)
        synced.discard(shop.folder.path.stat().st_ino)
        orders.append(target.name)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    shop.folder.place(served, shop.store / "blobs")
    shop.folder.make_current(served)
    assert orders == [served.graph, served.card, "previous", "current"]
    assert shop.folder.path.stat().st_ino in synced
