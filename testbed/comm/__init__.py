"""Communication between ranks: TCP, datagram and RDMA transports, collectives, flight recorder, replicas."""
