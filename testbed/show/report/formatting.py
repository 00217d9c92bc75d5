"""Measured quantities as people read them: `testbed.spec.units`, as this room knows it."""

from testbed.spec.units import (
    per_second_text,
    percent_text,
    rate_text,
    signed_percent_text,
    size_text,
    time_text,
)

__all__ = ["per_second_text", "percent_text", "rate_text", "signed_percent_text", "size_text", "time_text"]
