"""The work of a round on vectors and names: prepare, plan, schedule, estimate, close, merge, evaluate."""
