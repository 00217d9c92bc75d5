"""Execution traces: what each rank of a job did in a step, in real figures, whatever tool recorded it."""
