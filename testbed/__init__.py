"""Packet-level network emulation testbed for training jobs that span several data-center buildings."""

__version__ = "0.1.0"
