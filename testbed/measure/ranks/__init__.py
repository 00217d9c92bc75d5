"""The processes of a job: launcher, ranks and their telemetry, background traffic, and users' programs."""
