"""Build and tear down the network of namespaces and switches that a topology describes."""
