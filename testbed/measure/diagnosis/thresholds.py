"""Thresholds of the diagnosis, with the reason for each."""

from __future__ import annotations

CLOCK_ERROR_S = 1e-3
"""Largest difference between two ranks' clocks: PTP without hardware time stamps can be that bad."""

STALLED_TIMES = 5.0
"""An operation in progress is suspicious only after this many times the duration of the longest completed one: a dump
of a healthy run has operations in progress, too, and steps differ by less than that."""

SAME_STALL_SHARE = 0.5
"""Waits younger than this share of the oldest one are consequences of other ranks giving up."""

SLOW_RANK_SHARE = 0.2
"""A rank is slow if its own time between operations is longer by this share than that of ranks with the same program:
uneven computing is a few percent, a throttled straggler loses a fifth or more."""

LEAST_EXCESS_SHARE = 0.02
"""Share of the total time that a slow rank must need in addition: without computing, a fifth more means nothing."""

SLOW_RANK_OFTEN = 0.6
"""Minimum share of operations in which a slow rank must be slow: a single pause does not make a slow rank."""

LEAST_OPERATIONS = 3
"""Minimum number of comparable operations for any conclusion."""

SLOW_IO_TIMES = 10.0
"""Factor over the others' control part: published cases are at 100, scheduler jitter at 2 to 3."""

SLOW_IO_SHARE = 0.05
"""Minimum share of an operation's time that its control part must take to matter."""

SLOW_PAIR_TIMES = 3.0
"""A pair is slow if its last messages take this many times as long as the same messages did before, or as those of
comparable pairs: fair shares among the flows of a step vary by up to 2."""

HEALTHY_PAIR_TIMES = 1.6
"""A pair below this factor exonerates the parts that it crosses; between the two factors it shows nothing."""

UNSHARED_PAIR_TIMES = 6.0
"""The factor against the rates in paths.json, for messages with no other message of their sender ahead of them;
unknown queues of other senders add to it."""

ABROAD_SHARE = 0.15
"""Largest share of healthy pairs across a part that can still be the cause of slow ones: with few messages, some pairs
of a lossy part lose none."""

MOST_ABROAD_SHARE = 0.6
"""The same if no part explains anything with that share: even a loss of a fifth leaves most pairs with no late
message."""

AWAITED_SHARE = 0.05
"""Minimum share of a message's travel time for which its receiver must have waited: the arrival of an unexpected
message is not recorded."""

UNDER_WAY_TIMES = 3.0
"""A message sent less than this many usual travel times ago is in flight, not stuck."""

LEAST_CONTROL_S = 10e-6
"""Shorter control parts are not compared: two clock readings in one turn of an event loop differ by as much."""

LEAST_LAST = 2
"""Minimum number of a pair's last messages that must be slower than those of comparable pairs: one is chance."""

LATE_TIMES = 10.0
"""A message is very late if it takes this many times as long as comparable ones: a retransmission timeout, no queue."""

SAME_CLOCK_ERROR_S = 10e-6
"""Clock error of ranks that share a clock: two readings in one turn of an event loop."""

LEAST_MESSAGE_BYTES = 16384
"""Rates of smaller messages mean nothing: emulator timing and event loops take longer."""
