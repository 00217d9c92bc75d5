"""The job: models, parallelism, schedules, traces, serving; each rank's operations, placement and addresses."""
