"""Attention as a graph can have it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Let torch write attention in plain products: what it has fused has no gradient that could be traced.

    That is its kernels, and the one operator that a whole transformer layer is in prediction.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
