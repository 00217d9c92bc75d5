"""What a run leaves behind: records put together, figures of a summary, the run directory."""
