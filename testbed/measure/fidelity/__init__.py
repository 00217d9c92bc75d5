"""Fidelity of a run: link probes, host monitor, the checks of the verdict, and the host's capacity."""
