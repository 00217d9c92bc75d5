"""What every rank does in a step: models, parallelism, schedules, serving, traces, and the plans made of them."""
