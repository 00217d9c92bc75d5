"""The live page of a run, during the run and after it: see docs/how-to/live.md."""
