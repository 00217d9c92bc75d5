"""Experiments shared by commands and the Python API: run, explore and confirm, sweep, calibrate, reproduce."""
