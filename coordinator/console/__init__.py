"""The operator's terminal: send requests to a coordinator, and watch jobs, releases and rollouts."""
