"""Errors of carrying out a job."""

from __future__ import annotations


class RunError(Exception):
    """A run could not be brought to its end; says which part failed and how."""
