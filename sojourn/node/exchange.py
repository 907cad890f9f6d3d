"""Blob transfer: the receiver requests missing leaves, a window at a time, and verifies each one.

Like the roles, it has no clock: `now` is passed in, and messages are sent through `send`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sojourn.errors import DiskFull
from sojourn.node.machine import Pulled, PullFailed
from sojourn.node.peers import QUOTAS
from sojourn.protocol.messages import Chunk, Fetch, FetchHashes, Gone, Hashes
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import HASH, LEAF, BlobStore, Partial, digest_of_hashes, leaf_count

WINDOW = 32
"""Leaves in flight to this node: 0.9 MB, which a link of 100 KB/s transfers well within half a keepalive of 60 s."""
FIRST_TIMEOUT = 2.0
"""Seconds without progress until missing leaves are requested again; doubles up to LONGEST_TIMEOUT."""
LONGEST_TIMEOUT = 15.0
MAX_BLOB_BYTES = 1 << 32
"""A larger blob is not a model: a peer that offers one may want to fill the disk."""
MAX_REPEATS = 8
"""How often, plus a margin, a node gets a blob until it is sent the reference again: a request is small, the reply is
not."""
OVERHEAD = 512
"""Room for a chunk's envelope in addition to its leaves."""
Outcome = Pulled | PullFailed
log = logging.getLogger(__name__)


@dataclass
class _Transfer:
    ref: Ref
    source: Address
    partial: Partial
    due: float
    timeout: float = FIRST_TIMEOUT
    missing: list[int] = field(default_factory=list)
    flying: set[int] = field(default_factory=set)
    ready: bool = False
    """Whether the hashes are complete and verified, so that leaves can be requested."""


class Exchange:
    """The blob traffic of one node, in both directions."""

    def __init__(
        self, blobs: BlobStore, send: Callable[[Address, Message], None], limit: Callable[[Address], int]
    ) -> None:
        self._blobs = blobs
        self._send = send
        self._limit = limit
        self._transfers: dict[bytes, _Transfer] = {}
        self._pulling: dict[Address, dict[bytes, int]] = {}
        """The sizes of the blobs that are being fetched from each node, by digest."""
        self._granted: dict[Address, dict[bytes, int]] = {}
        """The blobs that each node may fetch, and the leaves sent to it since it last got the reference."""

    def grant(self, to: Address, digests: Iterable[bytes]) -> None:
        """Let a node fetch the blobs whose references it was given."""
        self._granted.setdefault(to, {}).update(dict.fromkeys(digests, 0))

    def forget(self, live: set[bytes] | frozenset[bytes]) -> None:
        """Drop grants and transfers of blobs that are no longer kept."""
        kept = {to: {k: v for k, v in served.items() if k in live} for to, served in self._granted.items()}
        self._granted = {to: served for to, served in kept.items() if served}
        for digest in self._transfers.keys() - live:
            self._end(digest)

    def pulling(self) -> set[bytes]:
        """Return the digests of the running transfers."""
        return set(self._transfers)

    def pull(self, ref: Ref, source: Address, now: float) -> list[Outcome]:
        """Start to fetch a blob, or return its outcome if that is known at once."""
        if self._blobs.has(ref.digest):
            return [Pulled(ref.digest)]
        if ref.size > MAX_BLOB_BYTES or (ref.size == 0 and ref.digest != digest_of_hashes(0, b"")):
            log.warning(
                "%s offers an invalid blob of %d bytes: too large, or empty with a wrong digest",
                source,
                ref.size,
            )
            return [PullFailed(ref.digest, "gone")]
        if (running := self._transfers.get(ref.digest)) and running.source == source:
            return []
        if self._over_quota(ref, source):
            log.warning("%s exceeds its quota of blobs to fetch: %s is not fetched", source, ref.digest.hex()[:12])
            return [PullFailed(ref.digest, "gone")]
        partial = self._blobs.partial(ref.digest, ref.size)
        transfer = _Transfer(ref, source, partial, now + FIRST_TIMEOUT)
        if len(partial.hashes) >= leaf_count(ref.size) * HASH and not _hash_list_is_right(transfer):
            partial.forget_hashes()  # the hashes left by an earlier process are damaged
        if running:
            self._end(ref.digest)
        self._transfers[ref.digest] = transfer
        self._pulling.setdefault(source, {})[ref.digest] = ref.size
        return self._advance(transfer, now)

    def offers(self, digest: bytes, to: Address) -> bool:
        """Return whether a node was given the reference of a blob in the store."""
        return digest in self._granted.get(to, ()) and self._blobs.has(digest)

    def _over_quota(self, ref: Ref, source: Address) -> bool:
        """Return whether one more blob from this node would exceed its quota."""
        running, quota = self._pulling.get(source, {}), QUOTAS[source.role]
        return len(running) >= quota.pulls or sum(running.values()) + ref.size > quota.pulled

    def _end(self, digest: bytes) -> None:
        """Stop fetching a blob."""
        transfer = self._transfers.pop(digest)
        del self._pulling[transfer.source][digest]
        if not self._pulling[transfer.source]:
            del self._pulling[transfer.source]

    def handle(self, sender: Address, message: Message, now: float) -> tuple[list[Outcome], bool]:
        """Process a message of the blob protocol; also return whether it was useful, and so a sign of life."""
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
        """Request again what has not arrived for a while."""
        for transfer in self._transfers.values():
            if transfer.due <= now:
                transfer.timeout = min(transfer.timeout * 2, LONGEST_TIMEOUT)
                transfer.missing = sorted(transfer.flying) + transfer.missing
                transfer.flying = set()
                self._request(transfer, now)

    def wake_at(self) -> float | None:
        """Return when the next request is due."""
        return min([transfer.due for transfer in self._transfers.values()]) if self._transfers else None

    def _serve(self, to: Address, message: Fetch | FetchHashes) -> bool:
        digest = message.digest
        if not self.offers(digest, to):
            self._send(to, Gone(digest))
            return False
        granted = self._granted[to]
        room = max(1, (self._limit(to) - OVERHEAD) // LEAF)
        leaves = leaf_count(self._blobs.size(digest))
        if (
            message.first >= leaves or granted[digest] > MAX_REPEATS * leaves + 2 * WINDOW
        ):  # beyond the end, or sent often enough
            return False
        if isinstance(message, FetchHashes):
            stop = min(leaves, message.first + (self._limit(to) - OVERHEAD) // HASH)
            granted[digest] += stop - message.first
            self._send(to, Hashes(digest, message.first, self._blobs.hashes(digest, message.first, stop)))
            return True
        stop = min(leaves, message.first + min(message.count, 2 * WINDOW))
        granted[digest] += stop - message.first
        # One read for all chunks: opening a file for every chunk costs as much as sending it.
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
            if not useful:  # no immediate request: missing leaves are due after the timeout
                return [], False
            transfer.timeout = FIRST_TIMEOUT
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
        log.warning("wrong leaf hashes of blob %s from %s", transfer.ref.digest.hex()[:12], transfer.source)
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
        """Continue a transfer with what it lacks next."""
        ref, partial = transfer.ref, transfer.partial
        if not transfer.ready and _hash_list_is_right(transfer):
            transfer.ready = True
            held = partial.held()
            transfer.missing = [leaf for leaf in range(leaf_count(ref.size)) if leaf not in held]
        if transfer.ready and not transfer.missing and not transfer.flying:
            self._blobs.complete(ref.digest)
            self._end(ref.digest)
            return [Pulled(ref.digest)]
        transfer.due = now + transfer.timeout
        if not transfer.ready or len(transfer.flying) <= WINDOW // 2:
            self._request(transfer, now)
        return []

    def _request(self, transfer: _Transfer, now: float) -> None:
        transfer.due = now + transfer.timeout
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
    """Return whether the list of hashes is complete and right; a single leaf needs none: the digest verifies it."""
    leaves, hashes = leaf_count(transfer.ref.size), transfer.partial.hashes
    if leaves == 1:
        return True
    return len(hashes) == leaves * HASH and digest_of_hashes(transfer.ref.size, bytes(hashes)) == transfer.ref.digest


def _continues(transfer: _Transfer, message: Hashes) -> bool:
    """Return whether these hashes are the next of the list, and not beyond its end."""
    held, total = len(transfer.partial.hashes), leaf_count(transfer.ref.size) * HASH
    return message.first * HASH == held and 0 < len(message.hashes) <= total - held and len(message.hashes) % HASH == 0


def _leaf_is_right(transfer: _Transfer, leaf: int, piece: memoryview) -> bool:
    if (known := transfer.partial.known(leaf)) is not None:
        return bytes(piece) == known  # comparing views is slow: it goes element by element
    found = hashlib.sha256(piece).digest()
    if leaf_count(transfer.ref.size) == 1:
        return digest_of_hashes(transfer.ref.size, found) == transfer.ref.digest
    return found == transfer.partial.hashes[leaf * HASH : (leaf + 1) * HASH]


def _runs(leaves: list[int]) -> list[tuple[int, int]]:
    """Return consecutive leaves as (first, count)."""
    runs: list[tuple[int, int]] = []
    for leaf in leaves:
        if runs and sum(runs[-1]) == leaf:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((leaf, 1))
    return runs
