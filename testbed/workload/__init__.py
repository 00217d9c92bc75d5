"""The job: models, parallelism, schedules, traces and serving; each rank's operations, placement and addresses."""
