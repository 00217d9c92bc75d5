"""Diagnosis of runs that hang, fail or are slow, from the flight recorder dumps of all ranks."""
