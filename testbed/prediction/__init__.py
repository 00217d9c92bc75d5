"""The model of a step, and what is built on it: configuration search and sweeps."""
