"""Execution of runs: build, measure, monitor and judge shards on this machine, on several, or in guests."""
