"""Messages as UDP datagrams: loss recovery and congestion control as state machines, and the sockets."""
