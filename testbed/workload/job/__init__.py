"""A job as data: placement of ranks, their plans, and the traffic declared to the network. Nothing runs here."""
