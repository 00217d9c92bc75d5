"""Step-time prediction from a model of the network, with configuration search and sweeps on top of it."""
