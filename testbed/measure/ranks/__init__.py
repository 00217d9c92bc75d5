"""Processes of a job: ranks, what they measure of themselves, hosts of other jobs, programs of anybody."""
