"""The simulated step: flows, or TCP packet by packet, in place of a network; calibration, search, sweeps."""
