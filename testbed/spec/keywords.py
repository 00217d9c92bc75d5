"""Words that a scenario may have in place of a figure: for `config`, which reads them, and for ranks, without it."""

BDP, PLANNED = "bdp", "planned"
"""In place of a buffer's size and of a pacing rate."""
