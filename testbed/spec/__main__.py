"""Check and print configuration files without the rest of the testbed: python -m testbed.spec COMMAND."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from testbed.spec.errors import ConfigError
from testbed.spec.file_formats import load, reference
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns 0 if the file is valid, else 2 with its problems on standard error."""
    parser = argparse.ArgumentParser(prog="python -m testbed.spec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="print a topology or scenario fully expanded")
    check.add_argument("--json", action="store_true", help="JSON in place of YAML")
    resolve = commands.add_parser("resolve", help="print a topology's hosts and links as JSON, in SI units")
    resolve.add_argument("--size-scale", type=float, default=1.0, help="divide rates and queues by this")
    commands.add_parser("reference", help="print the reference of all keys, docs/reference/configuration.md")
    for command in (check, resolve):
        command.add_argument("file")
    options = parser.parse_args(arguments)
    try:
        if options.command == "reference":
            print(reference(), end="")
        elif options.command == "resolve":
            print(
                json.dumps(dataclasses.asdict(load_topology(options.file).resolve(Scale(options.size_scale))))
            )
        elif options.json:
            print(json.dumps(load(options.file).to_data(), indent=1))
        else:
            print(load(options.file).to_yaml(), end="")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
