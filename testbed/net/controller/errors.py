"""Errors of the controller room."""

from __future__ import annotations

from testbed.errors import BadInput, TestbedError


class ControllerError(TestbedError):
    """Rules could not be computed, or the controller could not put them into the switches."""


class NoPathError(ControllerError):
    """A topology leaves two buildings without any path between them."""


class PolicyError(ControllerError, BadInput):
    """A policy cannot be had, or what it says does not fit the network. The network goes on under its last rules."""
