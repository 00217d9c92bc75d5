"""Output of the capabilities as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json as json_text
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.net.doctor.capabilities import Capability, Choice, choose
from testbed.net.doctor.probes import probe_all

_WORDS = {True: ("yes", "green"), False: ("no", "red"), None: ("unknown", "yellow")}


def report(json: bool = False) -> int:
    """Probe this host and print the result; return the exit status 0 if a run is possible here, else 1."""
    capabilities = probe_all()
    choice = choose(capabilities)
    if json:
        sys.stdout.write(as_json(capabilities, choice))
    else:
        print_table(capabilities, choice, Console(highlight=False))
    return 0 if choice.run_possible else 1


def as_json(capabilities: Sequence[Capability], choice: Choice) -> str:
    """Format the result as JSON: `capabilities` (name, status, evidence, hint), `choice` and `run_possible`."""
    shown = {
        "schema": 1,
        "capabilities": [dataclasses.asdict(capability) for capability in capabilities],
        "choice": {
            "link_engine": choice.link_engine,
            "datapath": choice.datapath,
            "reasons": list(choice.reasons),
        },
        "run_possible": choice.run_possible,
    }
    return json_text.dumps(shown, indent=2) + "\n"


def print_table(capabilities: Sequence[Capability], choice: Choice, console: Console) -> None:
    """Print the result as a table, readable without colour and in 80 columns."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("capability", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("evidence, and what to do")
    for capability in capabilities:
        word, style = _WORDS[capability.status]
        evidence = Text(capability.evidence)
        if capability.hint and not capability.status:
            evidence.append(f"\n{capability.hint}", style="italic")
        table.add_row(capability.name, Text(word, style=style), evidence)
    console.print(table)
    virtual = any(entry.name == "virtual clock" and entry.status for entry in capabilities)
    if choice.run_possible:
        sentence = f"A run here uses the {choice.link_engine} link engine and the {choice.datapath} datapath."
        console.print(Text(sentence, "bold"))
    else:
        under = " under the real clock" if virtual else ""
        console.print(Text(f"No run is possible here{under}:", "bold red"))
        for reason in choice.reasons:
            console.print(Text(f"  {reason}"))
    if virtual:
        console.print(Text("With --clock virtual: exact results, whatever else this machine does.", "bold"))
