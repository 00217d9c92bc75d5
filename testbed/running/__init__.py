"""Carrying out a run: build, measure, watch, judge; in parts, in guests of the virtual clock, on several machines."""
