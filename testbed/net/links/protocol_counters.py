"""What a namespace's protocols have counted, read whole from /proc/net; ranks do so, and need no netlink for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ETHERNET_BYTES = 14  # in an interface's count of bytes, not in that of IP


@dataclass(frozen=True)
class ProtocolCounts:
    """A namespace's IPv4 since it was made, without what it sends to itself; packets as they are on the wire.

    out_packets: those of TCP, UDP and ICMP. out_headers: IP headers in `out_bytes`, where several segments of TCP may
    share one that the interface takes apart again. in_errors: packets with a wrong checksum, of IP or TCP. delivered:
    of what came in, what was handed to a protocol. Bytes are those of IP packets.
    """

    out_packets: int
    out_headers: int
    out_bytes: int
    in_packets: int
    in_bytes: int
    in_errors: int
    delivered: int
    tcp_out: int
    tcp_in: int
    tcp_resent: int
    udp_out: int
    udp_in: int
    icmp_out: int
    icmp_in: int


def read_protocols(pid: int | None = None) -> ProtocolCounts:
    """Of the network namespace of process `pid` (None: of this thread)."""
    folder = Path(f"/proc/{'thread-self' if pid is None else pid}/net")
    return parse_protocols(*((folder / name).read_text() for name in ("snmp", "netstat", "dev")))


def parse_protocols(snmp: str, netstat: str, dev: str) -> ProtocolCounts:
    """From the text of these files of /proc/net."""
    known = {**_tables(snmp), **_tables(netstat)}
    ip, more, tcp, udp, icmp = (known[name] for name in ("Ip", "IpExt", "Tcp", "Udp", "Icmp"))
    tcp_out = tcp["OutSegs"] + tcp["RetransSegs"]  # Linux keeps these apart
    # what goes round over the loopback is counted in both directions, and is not on the network
    round_bytes, round_packets = next(
        ((int(words[0]), int(words[1])) for name, words in _interfaces(dev) if name == "lo"),
        (0, 0),
    )
    round_bytes -= ETHERNET_BYTES * round_packets
    return ProtocolCounts(
        # datagrams are counted before they are cut to fit
        out_packets=tcp_out
        + udp["OutDatagrams"]
        + icmp["OutMsgs"]
        + ip["FragCreates"]
        - ip["FragOKs"]
        - round_packets,
        out_headers=ip["OutRequests"] - round_packets,
        out_bytes=more["OutOctets"] - round_bytes,
        in_packets=ip["InReceives"] - round_packets,
        in_bytes=more["InOctets"] - round_bytes,
        in_errors=ip["InHdrErrors"] + tcp["InErrs"],
        # fragments are counted one by one before they are put together again
        delivered=ip["InDelivers"] + ip["ReasmReqds"] - ip["ReasmOKs"] - round_packets,
        tcp_out=tcp_out,
        tcp_in=tcp["InSegs"],
        tcp_resent=tcp["RetransSegs"],
        udp_out=udp["OutDatagrams"],
        udp_in=udp["InDatagrams"] + udp["NoPorts"] + udp["InErrors"],
        icmp_out=icmp["OutMsgs"],
        icmp_in=icmp["InMsgs"],
    )


def _tables(text: str) -> dict[str, dict[str, int]]:
    """Pairs of lines, names and figures, that both begin with the protocol's name."""
    lines = text.splitlines()
    found = {}
    for names, figures in zip(lines[::2], lines[1::2], strict=True):
        protocol, *keys = names.split()
        found[protocol.rstrip(":")] = dict(zip(keys, map(int, figures.split()[1:]), strict=True))
    return found


def _interfaces(text: str) -> list[tuple[str, list[str]]]:
    rows = (line.partition(":") for line in text.splitlines()[2:])
    return [(name.strip(), figures.split()) for name, _, figures in rows]
