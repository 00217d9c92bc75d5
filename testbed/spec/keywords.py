"""Keywords of scenario files, without pydantic, so that ranks can use them."""

BDP, PLANNED = "bdp", "planned"
"""Values in place of a buffer's size and of a pacing rate."""
