"""Reader of containerlab's `tools netem` scripts, and Linux names of interfaces."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BadInput
from testbed.show.exchange.graph_attributes import SHOWN_VALUES, count_text, shorten_value
from testbed.show.exchange.imported_graph import ImportedNetwork, LinkDirection
from testbed.spec.units import parse_duration

_CONTROL = ("for", "while", "until", "if", "elif", "case", "select", "function")
_SKIPPED_WORDS = ("do", "then", "else", "done", "fi", "esac", "{", "}", "sudo", "time", "export", "readonly")
_SHORT = {"n": "node", "i": "interface"}
_FLAGS = ("node", "interface", "delay", "jitter", "loss", "rate", "corruption")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_TIME, _SHARE = r"[\d.]+(?:us|ms|s)", r"[\d.]+%?"
_TC_OPTIONS = {
    "delay": re.compile(rf" delay ({_TIME})"),
    "jitter": re.compile(rf" delay {_TIME} ({_TIME})"),
    "loss": re.compile(r" loss (?:random )?([\d.]+)"),
    "corruption": re.compile(r" corrupt ([\d.]+)"),
    "rate": re.compile(r" rate ([\d.]+[kmg]?)bit"),
}
_TC = re.compile(
    r"(?:sudo )?(?:\S*/)?tc qdisc (?:add|replace|change) dev (?P<interface>\S+)(?: root)?(?: handle \S+)? netem"
    rf"(?P<options>(?: delay {_TIME}(?: {_TIME})?| loss (?:random )?{_SHARE}| corrupt {_SHARE}| rate [\d.]+[kmg]?bit)+)"
)
"""A netem command of tc; with a distribution, a limit or anything else it is not recognised."""
_UNITS = {"m": "min", "\N{MICRO SIGN}s": "us"}


@dataclass(frozen=True)
class Setting:
    """The settings of one command for an interface's egress; `where` is its file, line and text."""

    where: str
    container: str
    interface: str
    direction: LinkDirection


def read_script(path: Path, scale: float, network: ImportedNetwork) -> list[Setting]:
    """Return a script's settings in order, with rates multiplied by `scale`; report commands without effect.

    BadInput is raised for values that containerlab rejects.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(where=str(path), got=str(error), expected="a script") from None
    settings: list[Setting] = []
    commands = list(_commands(text))
    control = list(dict.fromkeys(word for _, words in commands for word in words[:1] if word in _CONTROL))
    if control:
        network.assumed.append(f"each line of {path.name} is read once, though it has {', '.join(control)}")
    constants = _constants(commands) if control else None
    variables: dict[str, str] = {}
    others: list[str] = []
    for line, written in commands:
        where = f"{path.name}:{line}: {' '.join(written)}"
        words = [_expand(word, variables) for word in written]
        while words and words[0] in _SKIPPED_WORDS:
            words.pop(0)
        if all(re.fullmatch(r"[A-Za-z_]\w*=.*", word) for word in words):
            assigned = (word.partition("=") for word in words)
            variables |= {
                name: value
                for name, _, value in assigned
                if "$" not in value and (constants is None or name in constants)
            }
        elif "netem" not in words or words[words.index("netem") + 1 :][:1] not in (["set"], ["reset"]):
            if words[0] not in ("set", *_CONTROL):
                others.append(f"{line}: {shorten_value(' '.join(words))}")
        elif any("$" in word or "`" in word for word in words):
            network.left_out.append(f"{where}: its variables are unknown")
        else:
            _apply(settings, network, f"{path}:{line}", where, words[words.index("netem") + 1 :], scale)
    if others:
        shown = "; ".join((*others[:SHOWN_VALUES], *(["..."] if len(others) > SHOWN_VALUES else [])))
        network.left_out.append(
            f"{count_text(len(others), 'command')} of {path.name} that set no link (line {shown})"
        )
    return settings


def tc_setting(where: str, container: str, command: str, scale: float) -> Setting | None:
    """Parse a `tc qdisc ... netem` command, with rates multiplied by `scale`; None if it is not fully understood."""
    match = _TC.fullmatch(" ".join(command.split()))
    if match is None:
        return None
    options = {
        name: found[1] for name, form in _TC_OPTIONS.items() if (found := form.search(match["options"]))
    }
    if rate := options.get("rate"):
        digits = rate.rstrip("kmg")
        factor = {"": 1e-3, "k": 1.0, "m": 1e3, "g": 1e6}[rate[len(digits) :]]
        options["rate"] = repr(float(digits) * factor)
    return Setting(where, container, match["interface"], _direction(options, scale))


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each command's line and words; a backslash at a line's end continues it."""
    joined, first = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        joined = ""
        try:
            words = list(lexer)
        except ValueError:  # the quotes end on a later line
            words = line.split()
        command: list[str] = []
        for word in (*words, ";"):
            if set(word) <= set(";&|"):
                if command:
                    yield first, command
                command = []
            else:
                command.append(word)


def _constants(commands: Sequence[tuple[int, list[str]]]) -> set[str]:
    """Return the variables that are assigned once, before any branch or loop."""
    counts: Counter[str] = Counter()
    early: set[str] = set()
    control = False
    for _, words in commands:
        control = control or words[0] in _CONTROL
        assigned = {match[1] for word in words if (match := re.match(r"([A-Za-z_]\w*)\+?=", word))}
        if words[0] in ("for", "select", "read"):
            assigned.update(words[1:])
        counts.update(assigned)
        early |= set() if control else assigned
    return {name for name in early if counts[name] == 1}


def _expand(word: str, variables: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), word)


def _apply(
    settings: list[Setting],
    network: ImportedNetwork,
    place: str,
    where: str,
    words: Sequence[str],
    scale: float,
) -> None:
    """Apply a `set` or `reset` command."""
    options = _options(words[1:])
    container, interface = options.get("node", ""), options.get("interface", "")
    if not container or not interface:
        network.left_out.append(f"{where}: no node and interface")
        return
    before = [one for one in settings if (one.container, one.interface) == (container, interface)]
    for setting in before:
        settings.remove(setting)
        network.left_out.append(f"{setting.where}: line {place.rpartition(':')[2]} sets the same interface")
    if words[0] == "reset":
        return
    if unknown := [name for name in options if name not in _FLAGS]:
        network.left_out.append(f"{where}: {', '.join(unknown)}")
    try:
        direction = _direction(options, scale)
    except ValueError as error:
        raise BadInput(where=place, got=" ".join(words), expected=str(error)) from None
    settings.append(Setting(where, container, interface, direction))


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return options by long name; the accepted forms are `--rate 10`, `--rate=10`, `-n x` and `-nx`."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
        elif name and not found[name]:
            value = word
        else:
            name, value = word, "?"
        found[name] = value
    return found


def _direction(options: dict[str, str], scale: float) -> LinkDirection:
    rate = _number(options.get("rate"), "a rate in whole kbit/s, such as 10000") * 1e3
    if scale != 1:
        rate = float(f"{rate * scale:.5g}")  # the precision of whole kbit/s
    loss, corruption = (
        _number(options.get(name), "a share in percent, such as 0.1") / 100 for name in ("loss", "corruption")
    )
    if not 0 <= loss <= 1 or not 0 <= corruption <= 1:
        raise ValueError("loss and corruption of 0 to 100")
    delay = _seconds(options["delay"]) if options.get("delay") else None
    return LinkDirection(rate or None, delay, _seconds(options.get("jitter") or "0s"), loss, corruption)


def _number(text: str | None, expected: str) -> float:
    try:
        return float(text or 0)
    except ValueError:
        raise ValueError(expected) from None


def _seconds(text: str) -> float:
    """Parse a duration in Go's syntax: "2ms", "1.5s", "1m30s", "0"."""
    parts = re.findall(r"([\d.]+)(ns|us|\u00b5s|ms|s|m|h)", text)
    if "".join(value + unit for value, unit in parts) != text and text != "0":
        raise ValueError("a duration such as 2ms")
    return sum(parse_duration(f"{value} {_UNITS.get(unit, unit)}") for value, unit in parts)


_JUNIPER = r"(?:et|xe|ge)-0/0/(\d+)"
_CISCO_XR = r"(?:Gi|GigabitEthernet|Te|TenGigE|TenGigabitEthernet)\s?0/0/0/(\d+)"
_CISCO_XE = r"(?:Gi|GigabitEthernet)\s?(\d+)"
_CISCO_ASA = r"(?:Gi|GigabitEthernet)\s?0/(\d+)"
_SLOT_1 = r"(?:Et|Ethernet)\s?1/(\d+)"
_SROS = r"(\d+(?:/[xc]?\d+)+)"
_SHIFTED: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("vmx", "vqfx", "vsrx", "vjunosevolved", "vjunosrouter", "vjunosswitch"), (_JUNIPER, 1)),
    "cjunosevolved": (r"et-0/0/(\d+)", 4),
    **dict.fromkeys(("xrv", "xrv9k", "xrd_vrouter"), (_CISCO_XR, 1)),
    **dict.fromkeys(("csr", "csr1000v", "c8000v"), (_CISCO_XE, -1)),
    "vios": (_CISCO_XE, 1),
    **dict.fromkeys(("asav", "ftdv"), (_CISCO_ASA, 1)),
    "cat9kv": (r"(?:Gi|GigabitEthernet)\s?1/0/(\d+)", 0),
    **dict.fromkeys(("veos", "n9kv", "pan", "panos"), (_SLOT_1, 0)),
    **dict.fromkeys(("aoscx", "sros"), (r"1/1/(\d+)", 0)),
    "cumulusvx": (r"swp(\d+)", 0),
    "fortigate": (r"port(\d+)", -1),
    "ros": (r"ether(\d+)", -1),
    "freebsd": (r"vtnet(\d+)", 0),
    "openbsd": (r"vio(\d+)", 0),
    "saos": (r"(\d+)", 0),
    "bigip-ve": (r"1\.(\d+)", 0),
}
"""Kinds without vendor prefix: the alias pattern, and the offset from the port's number to `ethN`."""


def linux_name(kind: str, name: str) -> str:
    """Return the Linux name of an interface; aliases are resolved, and other names stay unchanged."""
    own = kind.removeprefix("vr-")
    if own in ("srl", "nokia_srlinux"):
        match = re.fullmatch(r"ethernet-(\d+(?:/\d+)+)", name)
        return f"e{match[1].replace('/', '-')}" if match else name
    if own == "nokia_srsim":
        match = re.fullmatch(_SROS, name)
        return f"e{match[1].replace('/', '-')}" if match else name
    if own == "cisco_iol":
        match = re.fullmatch(r"(?:e|Ethernet)\s?(\d+)/(\d+)", name)
        return f"eth{4 * int(match[1]) + int(match[2])}" if match else name
    short = own.partition("_")[2]
    pattern, shift = _SHIFTED.get(own) or _SHIFTED.get(short) or ("", 0)
    match = re.fullmatch(pattern, name) if pattern else None
    return f"eth{int(match[1]) + shift}" if match else name
