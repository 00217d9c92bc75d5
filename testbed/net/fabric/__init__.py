"""A topology becomes a running network of namespaces and switches, and goes away again; nothing else is touched."""
