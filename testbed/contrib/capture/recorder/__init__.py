"""Runs in the Python of somebody's training script, with PyTorch and the standard library alone: records its step.

Modules of the testbed outside this folder are not imported here, but for what `testbed` itself needs.
"""
