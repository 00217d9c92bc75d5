"""Capture of a job from a user's own PyTorch script, without accelerators: the implementation of `testbed capture`."""
