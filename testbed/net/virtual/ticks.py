"""How often the virtual clock's kernel ticks, and when steps begin by it: for its build, ranks and the model."""

TICKS = 1000  # per second, while it is not idle: `changes.py` says why
TICK_S = 1 / TICKS
BEAT_TICKS = 10
"""A step begins on a beat. Who waits for it hears nobody at the end: for less than what counts as a stall."""
BEAT_S = BEAT_TICKS / TICKS
