"""What an operator's terminal does: asking a coordinator, watching jobs, releases and rollouts."""
