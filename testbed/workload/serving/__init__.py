"""Serving: arrival of requests, batching, and the computation and traffic of nodes of accelerator cards."""
