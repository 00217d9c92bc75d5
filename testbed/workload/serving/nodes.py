"""Nodes by the ranks on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A host and its cards, as ranks; building: its name."""

    host: int
    cards: tuple[int, ...]
    building: str = ""
