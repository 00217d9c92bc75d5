"""Entry point of `python -m testbed`, the same as the command `testbed`."""

from testbed.cli import main

if __name__ == "__main__":
    main()
