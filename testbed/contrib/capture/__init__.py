"""A job recorded from somebody's own PyTorch script, without accelerators: what `testbed capture` does."""
