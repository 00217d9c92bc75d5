"""Messages as UDP datagrams: state machines of recoveries and controls, and the sockets that they move."""
