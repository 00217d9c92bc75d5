"""Messages as UDP datagrams: loss recoveries and congestion controls as state machines, and their sockets."""
