"""Carrying out a run: its shards are built, measured, watched, judged; by this machine, several, or guests."""
