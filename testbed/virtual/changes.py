"""Lines of the kernel's source that are changed before it is built: part of the recipe, like the configuration.

Reading the clock advances it by one count of its counter, so that a program that waits for the time to change does not
wait for ever; as it comes, the counter counts 256 ns. All ranks share one clock: 64 of them, each reading it some
hundred times in a step, made the step ten milliseconds longer. And the timers' smallest step was 500 ns.
"""

from __future__ import annotations

from pathlib import Path

HEADER = Path("arch/um/include/linux/time-internal.h")
# pattern of the line, and the line in its place
CHANGES = {
    r"#define TIMER_MULTIPLIER\s+256\b": "#define TIMER_MULTIPLIER 1",
    r"#define TIMER_MIN_DELTA\s+500\b": "#define TIMER_MIN_DELTA 1",
}
