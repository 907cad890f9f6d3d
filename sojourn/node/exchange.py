"""Blobs move by being pulled: the receiver asks for what it lacks, a window at a time, and checks every leaf.

A machine without a clock of its own, like the roles: `now` comes in, messages go out through `send`.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sojourn.errors import DiskFull
from sojourn.node.machine import Pulled, PullFailed
from sojourn.node.quotas import QUOTAS
from sojourn.protocol.messages import Chunk, Fetch, FetchHashes, Gone, Hashes
from sojourn.store.blobs import HASH, LEAF, digest_of_hashes, leaf_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore, Partial

    HandOver = Callable[[Ref, Address, Callable[[float], list["Outcome"]]], bool]

WINDOW = 32
"""Leaves in flight towards us: 0.9 MB, which a link of 100 KB/s moves well within half a keepalive of 60 s."""
PATIENCE = 2.0
"""Seconds without news of a transfer until what is missing is asked for again; doubles up to LONGEST."""
LONGEST = 15.0
LARGEST = 1 << 32
"""A blob beyond this is not a model: who offers one wants to fill our disk."""
ENOUGH = 8
"""A node gets a blob so many times, and a little; then it must be sent the reference anew: a request is small, its
answer is not."""
OVERHEAD = 512
"""Room that a chunk's envelope needs beside its leaves."""
Outcome = Pulled | PullFailed
log = logging.getLogger(__name__)


@dataclass
class _Transfer:
    ref: Ref
    source: Address
    partial: Partial
    due: float
    patience: float = PATIENCE
    missing: list[int] = field(default_factory=list)
    flying: set[int] = field(default_factory=set)
    ready: bool = False
    """Whether the hashes are complete and checked, so that leaves can be asked for."""


class Exchange:
    """The blob traffic of one node, in both directions."""

    def __init__(
        self,
        blobs: BlobStore,
        send: Callable[[Address, Message], None],
        limit: Callable[[Address], int],
        hand_over: HandOver | None = None,
    ) -> None:
        """`hand_over` gets a blob from a node of this process, without messages, if it is there."""
        self._blobs = blobs
        self._send = send
        self._limit = limit
        self._hand_over = hand_over
        self._transfers: dict[bytes, _Transfer] = {}
        self._handing: set[bytes] = set()
        """What is being handed over to us by a node of this process."""
        self._under_way: dict[Address, dict[bytes, int]] = {}
        """The sizes of what is being fetched from each node, by digest."""
        self._granted: dict[Address, dict[bytes, int]] = {}
        """Who may fetch which blobs, and how much of each it got since it was last given the reference, in leaves."""

    def grant(self, to: Address, digests: Iterable[bytes]) -> None:
        """These blobs may be fetched by that node: it was given their references."""
        self._granted.setdefault(to, {}).update(dict.fromkeys(digests, 0))

    def forget(self, live: set[bytes] | frozenset[bytes]) -> None:
        """Blobs that are no longer kept need no grants and no transfers."""
        kept = {to: {k: v for k, v in served.items() if k in live} for to, served in self._granted.items()}
        self._granted = {to: served for to, served in kept.items() if served}
        for digest in self._transfers.keys() - live:
            self._end(digest)
        self._handing &= live

    def pulling(self) -> set[bytes]:
        """The digests of what is under way."""
        return self._transfers.keys() | self._handing

    def pull(self, ref: Ref, source: Address, now: float) -> list[Outcome]:
        """Begin to fetch a blob, or say at once that it is here."""
        if self._blobs.has(ref.digest):
            return [Pulled(ref.digest)]
        if ref.size > LARGEST or (ref.size == 0 and ref.digest != digest_of_hashes(0, b"")):
            log.warning(
                "%s offers a blob of %d bytes, which no blob can have: too large, or empty with a wrong digest",
                source,
                ref.size,
            )
            return [PullFailed(ref.digest, "gone")]
        if (running := self._transfers.get(ref.digest)) and running.source == source:
            return []
        if ref.digest in self._handing:
            return []
        if self._hand_over and self._hand_over(ref, source, lambda _now: self._handed(ref.digest)):
            self._handing.add(ref.digest)
            return []
        if self._too_much(ref, source):
            log.warning("%s has more to be fetched than it may: %s is not", source, ref.digest.hex()[:12])
            return [PullFailed(ref.digest, "gone")]
        partial = self._blobs.partial(ref.digest, ref.size)
        transfer = _Transfer(ref, source, partial, now + PATIENCE)
        if len(partial.hashes) >= leaf_count(ref.size) * HASH and not _hash_list_is_right(transfer):
            partial.forget_hashes()  # what an earlier process left is damaged
        if running:
            self._end(ref.digest)
        self._transfers[ref.digest] = transfer
        self._under_way.setdefault(source, {})[ref.digest] = ref.size
        return self._advance(transfer, now)

    def _handed(self, digest: bytes) -> list[Outcome]:
        """A blob was handed over and lies in the store; of no use if nobody wants it any more."""
        if digest not in self._handing:
            return []
        self._handing.discard(digest)
        return [Pulled(digest)]

    def offers(self, digest: bytes, to: Address) -> bool:
        """Whether a node was given the reference of a blob that is here."""
        return digest in self._granted.get(to, ()) and self._blobs.has(digest)

    def _too_much(self, ref: Ref, source: Address) -> bool:
        """Whether one more blob from this node would be more than its share."""
        under_way, quota = self._under_way.get(source, {}), QUOTAS[source.role]
        return len(under_way) >= quota.pulls or sum(under_way.values()) + ref.size > quota.pulled

    def _end(self, digest: bytes) -> None:
        """Nothing more is fetched of a blob."""
        transfer = self._transfers.pop(digest)
        del self._under_way[transfer.source][digest]
        if not self._under_way[transfer.source]:
            del self._under_way[transfer.source]

    def handle(self, sender: Address, message: Message, now: float) -> tuple[list[Outcome], bool]:
        """React to a message of the blob protocol; also tells whether it was of use, and so a sign of life."""
        match message:
            case Fetch() | FetchHashes():
                return [], self._serve(sender, message)
            case Hashes() | Chunk() | Gone():
                transfer = self._transfers.get(message.digest)
                if transfer is None or transfer.source != sender:
                    return [], False
                return self._take(transfer, message, now)
            case _:
                return [], False

    def tick(self, now: float) -> None:
        """Ask again where nothing has come for a while."""
        for transfer in self._transfers.values():
            if transfer.due <= now:
                transfer.patience = min(transfer.patience * 2, LONGEST)
                transfer.missing = sorted(transfer.flying) + transfer.missing
                transfer.flying = set()
                self._request(transfer, now)

    def wake_at(self) -> float | None:
        """When to ask again at the earliest."""
        return min([transfer.due for transfer in self._transfers.values()]) if self._transfers else None

    def _serve(self, to: Address, message: Fetch | FetchHashes) -> bool:
        digest, granted = message.digest, self._granted.get(to, {})
        if digest not in granted or not self._blobs.has(digest):
            self._send(to, Gone(digest))
            return False
        room = max(1, (self._limit(to) - OVERHEAD) // LEAF)
        leaves = leaf_count(self._blobs.size(digest))
        if (
            message.first >= leaves or granted[digest] > ENOUGH * leaves + 2 * WINDOW
        ):  # nothing there to send, or it was
            return False
        if isinstance(message, FetchHashes):
            stop = min(leaves, message.first + (self._limit(to) - OVERHEAD) // HASH)
            granted[digest] += stop - message.first
            self._send(to, Hashes(digest, message.first, self._blobs.hashes(digest, message.first, stop)))
            return True
        stop = min(leaves, message.first + min(message.count, 2 * WINDOW))
        granted[digest] += stop - message.first
        # One read for all: opening a file for every chunk costs as much as sending it.
        data = self._blobs.read(digest, message.first * LEAF, (stop - message.first) * LEAF)
        for at in range(0, len(data), room * LEAF):
            self._send(to, Chunk(digest, message.first + at // LEAF, data[at : at + room * LEAF]))
        return True

    def _take(self, transfer: _Transfer, message: Hashes | Chunk | Gone, now: float) -> tuple[list[Outcome], bool]:
        digest = transfer.ref.digest
        try:
            match message:
                case Gone():
                    self._end(digest)
                    return [PullFailed(digest, "gone")], True
                case Hashes() if not transfer.ready:
                    useful = self._keep_hashes(transfer, message)
                case Chunk() if transfer.ready:
                    useful = self._keep(transfer, message)
                case _:
                    useful = False
            if not useful:  # nothing is asked for at once: what is missing is due after the pause
                return [], False
            transfer.patience = PATIENCE
            return self._advance(transfer, now), True
        except DiskFull as error:
            log.warning("%s", error)
            self._end(digest)
            return [PullFailed(digest, "disk")], True

    def _keep_hashes(self, transfer: _Transfer, message: Hashes) -> bool:
        """Take the next hashes of the list, unless they, or the list that they complete, are wrong."""
        if not _continues(transfer, message):
            return False
        partial, size = transfer.partial, transfer.ref.size
        partial.add_hashes(message.first, message.hashes)
        if len(partial.hashes) < leaf_count(size) * HASH or _hash_list_is_right(transfer):
            return True
        log.warning("the leaf hashes of %s from %s do not match it", transfer.ref.digest.hex()[:12], transfer.source)
        partial.forget_hashes()
        return False

    def _keep(self, transfer: _Transfer, chunk: Chunk) -> bool:
        view, size, before = memoryview(chunk.data), transfer.ref.size, len(transfer.flying)
        for index, at in enumerate(range(0, len(view), LEAF)):
            leaf, piece = chunk.first + index, view[at : at + LEAF]
            if (
                leaf in transfer.flying
                and len(piece) == min(LEAF, size - leaf * LEAF)
                and _leaf_is_right(transfer, leaf, piece)
            ):
                transfer.partial.write(leaf, piece)
                transfer.flying.discard(leaf)
        return len(transfer.flying) < before

    def _advance(self, transfer: _Transfer, now: float) -> list[Outcome]:
        """Go on to the next thing that this transfer lacks."""
        ref, partial = transfer.ref, transfer.partial
        if not transfer.ready and _hash_list_is_right(transfer):
            transfer.ready = True
            held = partial.held()
            transfer.missing = [leaf for leaf in range(leaf_count(ref.size)) if leaf not in held]
        if transfer.ready and not transfer.missing and not transfer.flying:
            self._blobs.complete(ref.digest)
            self._end(ref.digest)
            return [Pulled(ref.digest)]
        transfer.due = now + transfer.patience
        if not transfer.ready or len(transfer.flying) <= WINDOW // 2:
            self._request(transfer, now)
        return []

    def _request(self, transfer: _Transfer, now: float) -> None:
        transfer.due = now + transfer.patience
        digest = transfer.ref.digest
        if not transfer.ready:
            self._send(transfer.source, FetchHashes(digest, len(transfer.partial.hashes) // HASH))
            return
        asked = transfer.missing[: WINDOW - len(transfer.flying)]
        transfer.missing = transfer.missing[len(asked) :]
        transfer.flying.update(asked)
        for first, count in _runs(asked):
            self._send(transfer.source, Fetch(digest, first, count))


def _hash_list_is_right(transfer: _Transfer) -> bool:
    """Whether the list of hashes is complete and right; of a single leaf none is needed: the digest checks it."""
    leaves, hashes = leaf_count(transfer.ref.size), transfer.partial.hashes
    if leaves == 1:
        return True
    return len(hashes) == leaves * HASH and digest_of_hashes(transfer.ref.size, bytes(hashes)) == transfer.ref.digest


def _continues(transfer: _Transfer, message: Hashes) -> bool:
    """Whether these hashes are the next of the list, and not more than it has."""
    held, total = len(transfer.partial.hashes), leaf_count(transfer.ref.size) * HASH
    return message.first * HASH == held and 0 < len(message.hashes) <= total - held and len(message.hashes) % HASH == 0


def _leaf_is_right(transfer: _Transfer, leaf: int, piece: memoryview) -> bool:
    if (known := transfer.partial.known(leaf)) is not None:
        return bytes(piece) == known  # views are compared number by number
    found = hashlib.sha256(piece).digest()
    if leaf_count(transfer.ref.size) == 1:
        return digest_of_hashes(transfer.ref.size, found) == transfer.ref.digest
    return found == transfer.partial.hashes[leaf * HASH : (leaf + 1) * HASH]


def _runs(leaves: list[int]) -> list[tuple[int, int]]:
    """Consecutive leaves as (first, count)."""
    runs: list[tuple[int, int]] = []
    for leaf in leaves:
        if runs and sum(runs[-1]) == leaf:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((leaf, 1))
    return runs
