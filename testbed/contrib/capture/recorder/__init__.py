"""The recorder of a training step. It runs in the script's own Python, with PyTorch and the standard library only.

It imports no modules of the testbed outside this folder, except what `testbed` itself needs.
"""
