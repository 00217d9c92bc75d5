"""Packet-level simulation of links and of Linux TCP, for effects that a fluid model misses.

Such effects are queues shorter than a round trip, windows that fill a queue together, and losses that wait for a timer.
The cost of a step grows with its number of packets: about ten microseconds each.
"""
