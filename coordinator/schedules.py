"""What a schedule of one's own is written with: `depart` returns `Departure`s, and both methods get the `Moment`."""

from coordinator.rounds.schedules import Departure, Moment

__all__ = ["Departure", "Moment"]
