"""What the author of an own objective needs (docs/strategies.md): import it from here, this path stays.

An own objective has `begin(w_in, received, memory)`, which returns an `Objective`: `direction` gives the loss and the
direction of each step, `end` what is `Left` when the visit is over. `Plain` follows the gradient and leaves nothing; an
objective that differs from it in one of the two may inherit the other.
"""

from __future__ import annotations

from edge_agent.training.objectives import Array, Left, Objective, Plain, Slope

__all__ = ["Array", "Left", "Objective", "Plain", "Slope"]
