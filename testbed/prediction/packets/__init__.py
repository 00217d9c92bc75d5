"""Packets, one by one: links that queue them, and TCP as Linux has it, where averages are not enough.

Queues that hold less than a round trip, windows that fill one together, losses that wait for a timer. What playing a
step takes goes by its packets: some ten microseconds for each.
"""
