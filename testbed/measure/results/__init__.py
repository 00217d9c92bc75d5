"""Results of runs: the run directory, merged records, and the figures of the summary."""
