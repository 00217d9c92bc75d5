"""Running a job and judging the result: ranks, runs, fidelity checks, results, diagnosis."""
