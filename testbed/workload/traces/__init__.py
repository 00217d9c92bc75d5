"""Execution traces: the operations of each rank of a job in a step, in real figures, from any recording tool."""
