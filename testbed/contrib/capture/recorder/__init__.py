"""The recorder of a training step, which runs in the script's own Python with PyTorch and the standard library.

It imports no modules of the testbed outside this folder, except what `testbed` itself needs.
"""
