"""What ranks exchange: TCP, datagram and RDMA transports, collectives, flight recorder, fault-tolerant replicas."""
