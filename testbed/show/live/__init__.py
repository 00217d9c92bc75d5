"""The page that shows a run, while it goes on and when it is over: see docs/how-to/live.md."""
