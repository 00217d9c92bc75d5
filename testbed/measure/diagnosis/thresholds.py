"""Thresholds of the diagnosis, each with its reason."""

from __future__ import annotations

CLOCK_ERROR_S = 1e-3
"""How far clocks of two ranks may be apart: PTP without hardware stamps is that bad on a bad day."""

STALLED_TIMES = 5.0
"""An operation under way is not suspicious before it has stood so many times as long as the longest that is over took:
a dump of a healthy run has operations under way, too, and steps differ by less than that."""

SAME_STALL_SHARE = 0.5
"""Waits that are younger than this share of the oldest came about by what others did when they gave up."""

SLOW_RANK_SHARE = 0.2
"""A rank is slow that needs so much more time of its own between operations than those that run the same program:
uneven computing is a few per cent, a straggler's clock throttles by a fifth or more."""

LEAST_EXCESS_SHARE = 0.02
"""Of the time that goes by meanwhile, that a slow rank must need more: where nobody computes, a fifth is nothing."""

SLOW_RANK_OFTEN = 0.6
"""In so large a share of operations at least: a pause once is not a slow rank."""

LEAST_OPERATIONS = 3
"""Fewer comparable operations say nothing."""

SLOW_IO_TIMES = 10.0
"""Times the others' control part; published cases are at 100, jitter of schedulers at 2 to 3."""

SLOW_IO_SHARE = 0.05
"""Of an operation's time, that its control part must take to matter."""

SLOW_PAIR_TIMES = 3.0
"""A pair is slow whose last messages travel so many times as long as the same messages did before, or as those of its
like do: fair shares among the flows of a step vary up to 2."""

HEALTHY_PAIR_TIMES = 1.6
"""A pair that stays below this exonerates what it crosses; in between it says nothing."""

UNSHARED_PAIR_TIMES = 6.0
"""The same against the rates of paths.json, of messages that nothing of their sender is ahead of; others' queues, of
which nobody knows, add to it."""

ABROAD_SHARE = 0.15
"""Of the pairs that cross a part, so many at most may be healthy where it is to be the cause of slow ones: luck of few
messages where it loses some."""

MOST_ABROAD_SHARE = 0.6
"""The same where no part explains anything by that: losses of a fifth leave most pairs with no message that is late."""

AWAITED_SHARE = 0.05
"""Of a message's travel its receiver must have waited for it at least: when one came that was not asked for yet is not
known."""

UNDER_WAY_TIMES = 3.0
"""A message that was sent no longer ago than so many times what its pair's take is on its way, not stuck."""

LEAST_CONTROL_S = 10e-6
"""Control parts below it are no measure: that is how far apart two readings of one clock are in one turn of a loop."""

LEAST_LAST = 2
"""Of a pair's messages so many at least, its last ones, are slower than those of pairs like it: one is chance."""

LATE_TIMES = 10.0
"""A message is very late that travels so many times as long as those like it: a retransmission by timer, no queue."""

SAME_CLOCK_ERROR_S = 10e-6
"""Of ranks that read one clock: two readings in one turn of an event loop."""

LEAST_MESSAGE_BYTES = 16384
"""Of smaller messages rates say nothing: what frames are held for, and event loops, take longer."""
