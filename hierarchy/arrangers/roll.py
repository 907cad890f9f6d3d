"""The old names of what an arranger gets and gives, so that an arranger written against them still runs.

New arrangers import from `hierarchy.arranging.candidates`: a `Roll` is `Candidates` now, a `Turn` an `ArrangeContext`.
"""

from hierarchy.arranging.candidates import ArrangeContext as Turn
from hierarchy.arranging.candidates import Arranged, ClientSet, Memo
from hierarchy.arranging.candidates import Candidates as Roll

__all__ = ["Arranged", "ClientSet", "Memo", "Roll", "Turn"]
