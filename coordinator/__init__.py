"""What runs in the cloud: jobs, schedules, aggregators, strategies, compiling, releases."""
