"""Check files without anything else of the testbed: python -m testbed.config check FILE [--json]."""

from __future__ import annotations

import argparse
import json
import sys

from testbed.config.errors import ConfigError
from testbed.config.files import expand, expand_data


def main() -> int:
    """Print the expanded file. Exit status: 0 if it is sound, 2 if not, with the problems on standard error."""
    parser = argparse.ArgumentParser(prog="python -m testbed.config", description=__doc__)
    parser.add_argument("command", choices=["check"], help="what to do")
    parser.add_argument("file", help="a topology or scenario file")
    parser.add_argument("--json", action="store_true", help="JSON in place of YAML")
    arguments = parser.parse_args()
    try:
        if arguments.json:
            print(json.dumps(expand_data(arguments.file), indent=1))
        else:
            print(expand(arguments.file), end="")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
