"""What the doctor concludes from what was seen, and what it chooses; nothing here looks at this machine."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from testbed.net.doctor import Capability, choose, probes
from testbed.net.doctor import capabilities as evidence
from testbed.net.doctor.capabilities import REQUIRED
from testbed.net.doctor.host_resources import (
    HostFacts,
    parse_cpu_quota,
    parse_memory_left,
    parse_own_groups,
)
from testbed.net.doctor.report import as_json, print_table
from testbed.net.doctor.sandbox import Outcome, abandoned_bridges, run
from testbed.net.virtual.kernel_image import KernelImage

GIB = 1 << 30
ALL_CAPABILITIES = 0x1FFFFFFFFFF


def host(**changes: bool | None) -> list[Capability]:
    """A host with everything; `changes` by name, with spaces as underscores."""
    names = [*REQUIRED, "netem", "packet sockets", "system datapath", "netdev datapath"]
    given = {name.replace("_", " "): status for name, status in changes.items()}
    assert set(given) <= set(names)
    return [Capability(name, given.get(name, True), f"seen {name}") for name in names]


def test_the_kernels_own_parts_are_preferred() -> None:
    choice = choose(host())
    assert (choice.link_engine, choice.datapath, choice.reasons) == ("netem", "system", ())
    assert choice.run_possible


@pytest.mark.parametrize("lacking", [False, None])
def test_what_the_kernel_lacks_is_replaced_and_the_reason_kept(lacking: bool | None) -> None:
    choice = choose(host(netem=lacking, system_datapath=lacking))
    assert (choice.link_engine, choice.datapath) == ("userspace", "netdev")
    assert [reason.split(":")[0] for reason in choice.reasons] == ["netem", "system datapath"]
    assert "seen netem" in choice.reasons[0]


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("lacking", [False, None])
def test_without_a_needed_capability_no_run_is_possible(name: str, lacking: bool | None) -> None:
    choice = choose(host(**{name.replace(" ", "_"): lacking}))
    assert (choice.link_engine, choice.datapath, choice.run_possible) == (None, None, False)
    assert [reason.split(":")[0] for reason in choice.reasons] == [name]


def test_a_capability_never_probed_counts_as_unknown() -> None:
    choice = choose([item for item in host() if item.name != "veth"])
    assert not choice.run_possible
    assert choice.reasons == ("veth: unknown (was not probed)",)


def test_without_any_link_engine_both_are_named() -> None:
    choice = choose(host(netem=False, packet_sockets=False))
    assert not choice.run_possible
    assert [reason.split(":")[0] for reason in choice.reasons] == ["netem", "packet sockets"]


def test_without_root_that_is_the_only_reason() -> None:
    choice = choose(host(root=False, veth=None, HTB=None, netem=None, packet_sockets=None, Open_vSwitch=None))
    assert [reason.split(":")[0] for reason in choice.reasons] == ["root"]


def test_root_needs_the_kernels_capabilities_too() -> None:
    assert evidence.root(0, ALL_CAPABILITIES).status is True
    user = evidence.root(1000, 0)
    assert (user.status, user.evidence) == (False, "user id 1000")
    contained = evidence.root(0, ALL_CAPABILITIES & ~(1 << 12))
    assert contained.status is False
    assert contained.evidence == "root without CAP_NET_ADMIN"


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, "", True),
        (2, "Error: Specified qdisc kind is unknown.", False),
        (2, "RTNETLINK answers: No such file or directory", False),
        (2, "RTNETLINK answers: Operation not supported", False),
        (2, "Error: Unknown device type.", False),
        (2, "RTNETLINK answers: Operation not permitted", None),
        (None, "tc not found", None),
        (None, "tc did not finish within 5 s", None),
        (1, "", None),
    ],
)
def test_absent_is_told_from_not_allowed(status: int | None, said: str, verdict: bool | None) -> None:
    capability = evidence.attempt("netem", Outcome(status, message=said), "qdisc netem 8001:", "a hint")
    assert capability.status is verdict
    assert capability.evidence == ("qdisc netem 8001:" if verdict else said or "status 1")


ANSWERS = Outcome(0, "3.1.0")
SERVER = Outcome(0, "ovsdb-server (Open vSwitch) 3.1.0")
SWITCH = Outcome(0, "ovs-vswitchd (Open vSwitch) 3.1.0")
SILENT = Outcome(
    1, message="ovs-vsctl: unix:/var/run/openvswitch/db.sock: database connection failed (No such file)"
)


def test_open_vswitch_runs_when_all_of_it_answers() -> None:
    capability = evidence.open_vswitch(True, ANSWERS, SERVER, SWITCH, ["ovsdb-server", "ovs-vswitchd"])
    assert capability.status is True
    assert capability.evidence == "ovsdb-server 3.1.0; ovs-vswitchd 3.1.0"


def test_open_vswitch_with_one_daemon_dead_does_not_run() -> None:
    dead = Outcome(1, message="ovs-appctl: cannot read pidfile ovs-vswitchd.pid (No such file or directory)")
    capability = evidence.open_vswitch(True, ANSWERS, SERVER, dead, ["ovsdb-server"])
    assert capability.status is False
    assert "cannot read pidfile" in capability.evidence
    assert "make setup" in capability.hint


def test_an_ordinary_user_cannot_know_whether_open_vswitch_answers() -> None:
    assert (
        evidence.open_vswitch(False, SILENT, SILENT, SILENT, ["ovsdb-server", "ovs-vswitchd"]).status is None
    )
    assert evidence.open_vswitch(False, SILENT, SILENT, SILENT, []).status is False
    missing = Outcome(None, message="ovs-vsctl not found")
    assert evidence.open_vswitch(False, missing, missing, missing, []).status is False


IN_USE = "netdev@ovs-netdev: hit:0 missed:0\n  tb12:\n    tb12 65534/1: (tap)\n"


def test_a_datapath_in_use_works_and_needs_no_trial() -> None:
    assert evidence.datapath("netdev", IN_USE, None, "").status is True
    assert evidence.datapath("system", IN_USE, None, "").status is None


@pytest.mark.parametrize(("port", "verdict"), [("65534", True), ("[]", False), ("-1", False), ("", False)])
def test_a_datapath_works_when_a_bridge_on_it_gets_a_port(port: str, verdict: bool) -> None:
    capability = evidence.datapath("system", "", port, "the module is not loaded")
    assert capability.status is verdict
    assert ("the module is not loaded" in capability.evidence) is not verdict


def test_the_reason_is_taken_out_of_open_vswitchs_log_line() -> None:
    line = "2026-11-21T06:54:22Z|00001|dpif_netlink|INFO|Generic Netlink family 'ovs_datapath' does not exist.\nmore"
    assert evidence.first_log_text(line) == "Generic Netlink family 'ovs_datapath' does not exist."
    assert evidence.first_log_text("") == ""


def test_bridges_of_dead_probes_are_found_and_others_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = Path("/proc/12")
    monkeypatch.setattr(Path, "exists", lambda path: path == alive)
    listed = "tbdoc11s tbdoc11n\ntbdoc12n tb11 tbdoc xtbdoc11s tbdoc11sx br0"
    assert abandoned_bridges(listed) == ["tbdoc11s", "tbdoc11n"]


def test_mnexec() -> None:
    assert evidence.mnexec(None, None).status is False
    assert evidence.mnexec("/usr/bin/mnexec", None).status is True
    broken = evidence.mnexec("/usr/bin/mnexec", Outcome(1, message="unshare: Operation not permitted"))
    assert broken.status is False
    assert "Operation not permitted" in broken.evidence


def test_the_controller_library_must_import() -> None:
    assert evidence.controller_library("os-ken", Outcome(0, "4.2.2"), "").evidence == "4.2.2, imports"
    failed = evidence.controller_library(
        "os-ken", Outcome(1, message="Traceback\nModuleNotFoundError: os_ken"), "do"
    )
    assert (failed.status, failed.evidence, failed.hint) == (False, "ModuleNotFoundError: os_ken", "do")
    assert evidence.controller_library("os-ken", Outcome(None, message="still importing"), "").status is None


def test_congestion_controls() -> None:
    capability = evidence.congestion_controls("reno bbr cubic\n", "bbr\n")
    assert (capability.status, capability.evidence) == (True, "reno, bbr, cubic (default bbr)")
    assert evidence.congestion_controls("vegas\n", "vegas\n").status is None


def test_mptcp() -> None:
    assert evidence.mptcp(None, "1\n").status is True
    assert evidence.mptcp(None, "0\n").status is False
    assert evidence.mptcp("Protocol not supported", "").status is False


@pytest.mark.parametrize(
    ("mounts", "status", "said"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\nproc /proc proc rw 0 0\n", True, "v2"),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", True, "v1 (cpu)"),
        (
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            True,
            "v1 and v2 (cpu)",
        ),
        ("proc /proc proc rw 0 0\n", False, "none mounted"),
    ],
)
def test_cgroups(mounts: str, status: bool, said: str) -> None:
    capability = evidence.cgroups(mounts)
    assert (capability.status, capability.evidence) == (status, said)


def test_cores_count_what_a_container_may_use() -> None:
    facts = HostFacts(8, None, 16 * GIB, 8 * GIB, "6.1", "x86_64")
    assert evidence.cores(facts).status is True
    limited = evidence.cores(HostFacts(8, 1.5, 16 * GIB, 8 * GIB, "6.1", "x86_64"))
    assert (limited.status, limited.evidence) == (False, "8 usable, time of 1.5")


def test_memory() -> None:
    assert (
        evidence.memory(HostFacts(2, None, 4 * GIB, 2 * GIB, "6.1", "x86_64")).evidence
        == "2.0 GiB free of 4.0"
    )
    assert evidence.memory(HostFacts(2, None, 4 * GIB, GIB // 2, "6.1", "x86_64")).status is False


def test_a_clock_is_good_when_fine_and_punctual() -> None:
    assert evidence.clock(1e-9, "tsc", [50e-6, 60e-6, 5e-3]).status is True
    assert evidence.clock(4e-3, "tsc", [50e-6]).status is False
    assert evidence.clock(1e-9, "tsc", [2e-3, 3e-3, 50e-6]).status is False


def test_a_probe_that_breaks_makes_its_capabilities_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Capability]:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(probes, "_kernel", broken)
    monkeypatch.setattr(probes, "_open_vswitch", list)
    found = {item.name: item for item in probes.probe_all()}
    for name in ("network namespaces", "veth", "kernel bridge", "HTB", "netem"):
        assert found[name].status is None
        assert "RuntimeError: no such luck" in found[name].evidence
    assert found["cgroups"].status is not None


def test_a_program_that_hangs_or_is_missing_is_no_exception() -> None:
    assert run(["sleep", "9"], timeout_s=0.05).message == "sleep did not finish within 0.05 s"
    missing = run(["tbdoc-no-such-program"])
    assert (missing.status, missing.message) == (None, "tbdoc-no-such-program not found")


def test_container_limits() -> None:
    assert parse_cpu_quota("150000", "100000") == 1.5
    assert parse_cpu_quota("max", "100000") is None
    assert parse_cpu_quota("", "") is None
    assert parse_cpu_quota("-1", "100000") is None
    assert parse_memory_left("1000", "400") == 600
    assert parse_memory_left("1000", "1400") == 0
    assert parse_memory_left("max", "400") is None
    assert parse_memory_left("9223372036854771712", "400") is None


def test_own_cgroups() -> None:
    mixed = "3:cpu,cpuacct:/box\n2:memory:/\n1:name=systemd:/x\n0::/y\n"
    assert parse_own_groups(mixed, Path("/cg")) == {"cpu": Path("/cg/cpu/box"), "memory": Path("/cg/memory")}
    unified = parse_own_groups("0::/user.slice/a\n", Path("/cg"))
    assert unified == {"cpu": Path("/cg/user.slice/a"), "memory": Path("/cg/user.slice/a")}


def shown(capabilities: list[Capability]) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_table(capabilities, choose(capabilities), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_each_capability_its_hint_and_the_choice() -> None:
    text = shown([*host(netem=False), Capability("Ryu", False, "not here", "do this")])
    assert "A run here uses the userspace link engine and the system datapath." in text
    assert "seen packet sockets" in text
    assert "do this" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_table_says_why_no_run_is_possible() -> None:
    assert "No run is possible here:\n  HTB: no (seen HTB)" in shown(host(HTB=False))


def test_json_says_the_same() -> None:
    capabilities = host(netem=None)
    data = json.loads(as_json(capabilities, choose(capabilities)))
    assert data["run_possible"] is True
    assert data["choice"]["link_engine"] == "userspace"
    assert {item["name"]: item["status"] for item in data["capabilities"]}["netem"] is None


def test_rdma_needs_soft_roce_in_the_virtual_clocks_kernel_and_pyverbs(tmp_path: Path) -> None:
    programs = {"ibv_devices": True, "rping": False}
    image = KernelImage(tmp_path, "7.3.4", "recipe", 1, ("netem", "soft-RoCE"))
    found = evidence.rdma(image, programs, None)
    words = "soft-RoCE under the virtual clock; programs: ibv_devices; pyverbs: installed"
    assert (found.status, found.evidence) == (True, words)
    both = KernelImage(tmp_path, "7.3.4", "recipe", 1, ("soft-RoCE", "soft-iWARP"))
    assert evidence.rdma(both, programs, None).evidence.startswith("soft-RoCE and soft-iWARP under")
    lacking = evidence.rdma(image, {}, "RDMA needs pyverbs: no /usr/lib")
    assert (lacking.status, lacking.hint) == (
        False,
        "tools/bootstrap rdma installs what the distribution has",
    )
    assert "no /usr/lib" in lacking.evidence
    older = KernelImage(tmp_path, "6.1.192", "recipe", 1, ("netem",))
    assert "Linux 6.1.192, has no soft-RoCE" in evidence.rdma(older, programs, None).evidence
    assert evidence.rdma(None, programs, None).hint == "make virtual builds it"


def test_the_virtual_clock_needs_its_kernel_and_the_programs_of_its_guests(tmp_path: Path) -> None:
    image = KernelImage(tmp_path, "6.1.192", "recipe", 1, ("netem", "htb"))
    found = evidence.virtual_clock("x86_64", image, "", [])
    assert (found.status, found.evidence) == (True, "Linux 6.1.192, 2 features tested; needs no root")
    none = evidence.virtual_clock("x86_64", None, "not built yet", [])
    assert (none.status, none.evidence) == (False, "not built yet")
    assert none.hint.startswith("make virtual")
    assert evidence.virtual_clock("aarch64", image, "", []).status is False
    assert "mnexec" in evidence.virtual_clock("x86_64", image, "", ["mnexec"]).evidence
