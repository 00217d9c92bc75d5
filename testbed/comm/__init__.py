"""How ranks communicate: transports, collectives, the flight recorder and fault-tolerant replicas."""
