"""What ranks do in a step: models, parallelism, schedules, plans, traces and serving."""
