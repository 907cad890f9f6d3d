"""The coordinator in the cloud: jobs, schedules, aggregators, strategies, compiling, releases."""
