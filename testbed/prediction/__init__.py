"""The simulated step: fluid flows or packet-level TCP in place of a network; calibration, search, sweeps."""
