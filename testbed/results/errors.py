"""What can be wrong with a run's files."""


class BadResult(ValueError):
    """A folder holds no run, or one of another version; names file, field or line, value and what was expected."""
