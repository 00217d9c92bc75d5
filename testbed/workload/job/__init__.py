"""A job as data: the placement of ranks, their plans, and the traffic declared to the network. Nothing runs here."""
