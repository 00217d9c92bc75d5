"""Execution of runs: build, measure, monitor and judge shards on this machine, on several machines, or in guests."""
