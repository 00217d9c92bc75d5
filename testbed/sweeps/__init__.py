"""Sweeps: a scenario at all values of one or two of its settings; axes, what came out, which points to confirm."""
