"""Protocol counters of a network namespace, read from /proc/net. Ranks read them, too, so there is no netlink here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.spec.link_direction import ETHERNET_HEADER_BYTES


@dataclass(frozen=True)
class ProtocolCounts:
    """The IPv4 counters of a namespace since its creation, without loopback traffic; packets as on the wire.

    out_packets: packets of TCP, UDP and ICMP. out_headers: IP headers in `out_bytes`; TCP segments may share a header
    until the interface splits them. in_errors: packets with a wrong IP or TCP checksum. delivered: incoming packets
    that were passed to a protocol. Bytes are those of IP packets.
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


def read_protocol_counts(pid: int | None = None) -> ProtocolCounts:
    """Read the counters of the network namespace of process `pid` (None: of the current thread)."""
    folder = Path(f"/proc/{'thread-self' if pid is None else pid}/net")
    return parse_protocol_counts(*((folder / name).read_text() for name in ("snmp", "netstat", "dev")))


def parse_protocol_counts(snmp: str, netstat: str, dev: str) -> ProtocolCounts:
    """Parse the contents of these files of /proc/net."""
    known = {**_parse_tables(snmp), **_parse_tables(netstat)}
    ip, more, tcp, udp, icmp = (known[name] for name in ("Ip", "IpExt", "Tcp", "Udp", "Icmp"))
    tcp_out = tcp["OutSegs"] + tcp["RetransSegs"]  # Linux counts them separately
    # loopback traffic is counted in both directions, but is not on the network
    loopback_bytes, loopback_packets = next(
        ((int(words[0]), int(words[1])) for name, words in _parse_interfaces(dev) if name == "lo"),
        (0, 0),
    )
    loopback_bytes -= ETHERNET_HEADER_BYTES * loopback_packets  # packets that IP does not count
    return ProtocolCounts(
        # datagrams are counted before fragmentation
        out_packets=tcp_out
        + udp["OutDatagrams"]
        + icmp["OutMsgs"]
        + ip["FragCreates"]
        - ip["FragOKs"]
        - loopback_packets,
        out_headers=ip["OutRequests"] - loopback_packets,
        out_bytes=more["OutOctets"] - loopback_bytes,
        in_packets=ip["InReceives"] - loopback_packets,
        in_bytes=more["InOctets"] - loopback_bytes,
        in_errors=ip["InHdrErrors"] + tcp["InErrs"],
        # fragments are counted one by one before reassembly
        delivered=ip["InDelivers"] + ip["ReasmReqds"] - ip["ReasmOKs"] - loopback_packets,
        tcp_out=tcp_out,
        tcp_in=tcp["InSegs"],
        tcp_resent=tcp["RetransSegs"],
        udp_out=udp["OutDatagrams"],
        udp_in=udp["InDatagrams"] + udp["NoPorts"] + udp["InErrors"],
        icmp_out=icmp["OutMsgs"],
        icmp_in=icmp["InMsgs"],
    )


def _parse_tables(text: str) -> dict[str, dict[str, int]]:
    """Parse pairs of lines, names and values, that both start with the name of the protocol."""
    lines = text.splitlines()
    found = {}
    for names, figures in zip(lines[::2], lines[1::2], strict=True):
        protocol, *keys = names.split()
        found[protocol.rstrip(":")] = dict(zip(keys, map(int, figures.split()[1:]), strict=True))
    return found


def _parse_interfaces(text: str) -> list[tuple[str, list[str]]]:
    rows = (line.partition(":") for line in text.splitlines()[2:])
    return [(name.strip(), figures.split()) for name, _, figures in rows]
