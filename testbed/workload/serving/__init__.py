"""Serving: arrival of requests, batching, and what nodes of accelerator cards compute and send for them."""
