"""Where a kernel's source comes from, what is changed in it, and which built kernel fits."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from testbed.net.errors import NoKernelError, VirtualClockError
from testbed.net.virtual.kernel_build import build
from testbed.net.virtual.kernel_image import KernelImage, find_image, read_recipe_file, recipe
from testbed.net.virtual.kernel_patches import PATCHES
from testbed.net.virtual.kernel_source import find_source, patches_for, read_kernel_version, unpack

LINES = {
    "arch/um/Kconfig": "config HZ\n\tint\n\tdefault 100\n",
    "Makefile": "VERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 9\nEXTRAVERSION =\nNAME = x\n",
    "arch/um/include/linux/time-internal.h": "#define TIMER_MULTIPLIER 256\n#define TIMER_MIN_DELTA  500\n",
    "arch/um/kernel/time.c": "void time_travel_sleep(void)\n{\n\ttime_travel_update_time(next, true);\n}\n\n"
    "static void time_travel_handle_real_alarm(void)\n{\n\ttime_travel_set_time(time_travel_next_event);\n\n"
    "\ttime_travel_del_event(&time_travel_timer_event);\n}\n\n"
    "static u64 timer_read(struct clocksource *cs)\n{\n"
    "\ttime_travel_update_time_rel(TIMER_MULTIPLIER);\n}\n",
    "arch/x86/um/user-offsets.c": "\tDEFINE_LONGS(HOST_FP_SIZE, 2696);\n",
    "arch/x86/um/os-Linux/registers.c": "int have_xstate_support;\n"
    + "".join(
        f"\t\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n\t\tif (ptrace(PTRACE_{call}, pid) < 0)\n"
        for call in ("GETREGSET", "SETREGSET")
    )
    + "\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n"
    "\tif (ptrace(PTRACE_GETREGSET, pid) == 0)\n\t\thave_xstate_support = 1;\n",
    "drivers/char/random.c": "static ssize_t get_random_bytes_user(struct iov_iter *iter)\n{\n"
    "\tcrng_make_state(chacha_state, (u8 *)&chacha_state[4], CHACHA_KEY_SIZE);\n}\n"
    "\t_mix_pool_bytes(command_line, strlen(command_line));\n",
    "include/linux/sched/signal.h": "struct signal_struct {\n\trefcount_t\t\tsigcnt;\n",
    "kernel/fork.c": "\n\tsig->nr_threads = 1;\n",
    "kernel/irq/handle.c": "\n\tadd_interrupt_randomness(desc->irq_data.irq);\n",
    "fs/binfmt_elf.c": "\tget_random_bytes(k_rand_bytes, sizeof(k_rand_bytes));\n",
    "drivers/infiniband/sw/rxe/rxe_req.c": '#include "rxe_queue.h"\n\tif (psn > RXE_MAX_UNACKED_PSNS)\n',
    "drivers/infiniband/sw/rxe/rxe_net.c": "static struct rxe_recv_sockets recv_sockets;\n"
    "\trt = ip_route_output_key(&init_net, &fl);\n"
    "\tndst = ipv6_stub->ipv6_dst_lookup_flow(sock_net(recv_sockets.sk6->sk),\n\t\trecv_sockets.sk6->sk, &fl6,\n"
    "static int rxe_net_ipv4_init(void)\n{\n\trecv_sockets.sk4 = x;\n\treturn 0;\n}\n"
    "static int rxe_net_ipv6_init(void)\n{\n\trecv_sockets.sk6 = x;\n\treturn 0;\n}\n"
    "void rxe_net_exit(void)\n{\n"
    "\trxe_release_udp_tunnel(recv_sockets.sk6);\n\trxe_release_udp_tunnel(recv_sockets.sk4);\n}\n"
    "int rxe_net_init(void)\n{\n\trecv_sockets.sk6 = NULL;\n\n\terr = rxe_net_ipv4_init();\n"
    "\tif (err)\n\t\treturn err;\n\terr = rxe_net_ipv6_init();\n\tif (err)\n\t\tgoto err_out;\n}\n",
    "net/sched/sch_netem.c": "struct netem_sched_data {\n\tu64 rate;\n};\n"
    "static u64 packet_time_ns(u64 len, const struct netem_sched_data *q)\n{\n"
    "\treturn div64_u64(len * NSEC_PER_SEC, q->rate);\n}\n",
}


def tree(folder: Path) -> Path:
    for name, text in LINES.items():
        path = folder / "linux-6.1.9" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "linux-6.1.9"


def image(folder: Path, version: str, recipe_id: str) -> KernelImage:
    folder.mkdir(parents=True)
    (folder / "linux").write_text("")
    (folder / "linux").chmod(0o755)
    (folder / "seeded_random.so").write_text("")
    made = KernelImage(folder, version, recipe_id, 0x1234, ("netem",))
    made.write()
    return made


def test_the_newest_packaged_source_is_taken_and_old_ones_are_not(tmp_path: Path) -> None:
    for name in ("linux-source-5.10.tar.xz", "linux-source-6.1.tar.xz", "linux-source-6.12.tar.bz2"):
        (tmp_path / name).write_text("")
    assert find_source(None, tmp_path).name == "linux-source-6.12.tar.bz2"
    for name in ("linux-source-6.1.tar.xz", "linux-source-6.12.tar.bz2"):
        (tmp_path / name).unlink()
    with pytest.raises(
        VirtualClockError, match=r"no kernel source of Linux 6\.1 or newer .*virtual build --source PATH"
    ):
        find_source(None, tmp_path)


def test_a_source_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(VirtualClockError, match="no such kernel source"):
        find_source(tmp_path / "nothing")
    with pytest.raises(VirtualClockError, match="not a kernel source tree"):
        find_source(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_the_changes_are_made_in_a_copy(packed: bool, tmp_path: Path) -> None:
    original = tree(tmp_path)
    given = original
    if packed:
        given = tmp_path / "source.tar.xz"
        with tarfile.open(given, "w:xz") as archive:
            archive.add(original, original.name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    copy = unpack(given, scratch)
    assert read_kernel_version(copy) == "6.1.9"
    assert "#define TIMER_MULTIPLIER 1\n" in (copy / "arch/um/include/linux/time-internal.h").read_text()
    code = (copy / "arch/um/kernel/time.c").read_text()
    assert "{ u64 gone = time_since_read(); if (gone) time_travel_update_time_rel(gone); }" in code
    assert code.index("time_since_read(void)") < code.index("timer_read(")
    assert code.index("towards_host(void)") < code.index("time_travel_sleep(void)")
    assert "(next, true);\n\tlook_at_host();\n\towed = 0;\n}" in code
    assert "timer_event);\n\ttime_travel_set_time(time_travel_time + towards_host());\n}" in code
    assert (copy / "arch/um/Kconfig").read_text().endswith("default 1000\n")
    code = (copy / "net/sched/sch_netem.c").read_text()
    assert "packet_time_ns(u64 len, struct netem_sched_data *q)" in code
    assert code.count("rounded_off") == 3
    code = (copy / "arch/x86/um/os-Linux/registers.c").read_text()
    assert code.count("iov_len = host_fp_bytes;") == 2
    assert "== 0) {\n\t\thave_xstate_support = 1;\n\t\thost_fp_bytes = iov.iov_len;\n\t}" in code
    for name, text in LINES.items():
        assert (original / name).read_text() == text


def test_soft_roce_listens_in_every_namespace_and_its_window_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    folder = unpack(tree(tmp_path), tmp_path / "scratch") / "drivers/infiniband/sw/rxe"
    code = (folder / "rxe_req.c").read_text()
    assert "if (psn > rxe_max_unacked_psns)" in code
    assert code.index("module_param_named(max_unacked_psns") < code.index("if (psn")
    code = (folder / "rxe_net.c").read_text()
    assert "init_net" not in code
    assert "recv_sockets." not in code
    assert code.count("register_pernet_subsys(&rxe_sockets_ops)") == 2  # and once to be let go
    assert "ip_route_output_key(dev_net(ndev), &fl)" in code
    names, window = Path("drivers/infiniband/sw/rxe/rxe_net.c"), Path("drivers/infiniband/sw/rxe/rxe_req.c")
    assert names in patches_for((6, 12, 95))
    assert names not in patches_for((7, 3, 4))
    assert window in patches_for((7, 3, 4))


def test_a_kernel_that_asks_its_host_how_large_registers_are_is_left_as_it_is() -> None:
    registers = Path("arch/x86/um/os-Linux/registers.c")
    assert registers in patches_for((6, 12, 9))
    assert registers not in patches_for((6, 13, 0))


def test_a_call_that_fails_costs_nothing_where_it_would_take_time() -> None:
    calls = Path("arch/um/kernel/skas/syscall.c")
    assert calls not in patches_for((6, 1, 176))
    assert patches_for((6, 12, 0))[calls] == patches_for((7, 3, 4))[calls]
    code = "#include <asm/delay.h>\n\t\tif (error) {\n\t\t\tum_udelay(1);\n\t\t\tschedule();\n"
    for pattern, line in patches_for((7, 3))[calls].items():
        code = re.sub(pattern, line, code)
    assert code == "#include <linux/timekeeping.h>\n\t\tif (error) {\n\t\t\tktime_get();\n\t\t\tschedule();\n"


def test_a_schedulers_clock_that_runs_ahead_does_not_stand_still_later() -> None:
    time = Path("arch/um/kernel/time.c")
    assert len(patches_for((7, 3))[time]) == len(patches_for((6, 12))[time]) + 2
    extra = "\n\t/* clock tick */\n\tif (tt_extra_sched_jiffies > 0)\n\t\ttt_extra_sched_jiffies -= 1;\n"
    extra += "\n\tdeliver_alarm();\n}\n"
    head = "static void time_travel_{}_timer(struct time_travel_event *e)\n{{"
    code = "".join(head.format(kind) + extra for kind in ("periodic", "oneshot"))
    for pattern, line in [*patches_for((7, 3))[time].items()][-2:]:
        code, count = re.subn(pattern, line, code)
        assert count == 1
    assert "extra" not in code
    assert code.count("deliver_alarm") == 2


def test_a_source_in_which_there_is_nothing_to_change_is_refused(tmp_path: Path) -> None:
    original = tree(tmp_path)
    (original / "arch/um/kernel/time.c").write_text("nothing\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(VirtualClockError, match=r"arch/um/kernel/time\.c: got 0 matches of"):
        unpack(original, scratch)


def test_older_kernels_lines_are_found_too() -> None:
    pattern, line = next(iter(PATCHES[Path("arch/um/kernel/time.c")].items()))
    old = "time_travel_update_time(time_travel_time + TIMER_MULTIPLIER, false);"
    assert re.sub(pattern, line, old) == (
        "{ u64 gone = time_since_read(); if (gone) time_travel_update_time(time_travel_time + gone, false); }"
    )


def test_too_old_a_tree_is_refused(tmp_path: Path) -> None:
    original = tree(tmp_path)
    (original / "Makefile").write_text("VERSION = 5\nPATCHLEVEL = 10\nSUBLEVEL = 1\nEXTRAVERSION = -x\n")
    with pytest.raises(VirtualClockError, match=r"got Linux 5\.10\.1-x, expected 6\.1 or newer"):
        read_kernel_version(original)


def test_the_newest_image_of_todays_recipe_is_found(tmp_path: Path) -> None:
    image(tmp_path / "a", "6.1.192", recipe())
    image(tmp_path / "b", "6.12.3", recipe())
    image(tmp_path / "c", "6.15.0", "of another recipe")
    (tmp_path / "half").mkdir()
    found = find_image([tmp_path])
    assert (found.version, found.clock_address, found.checked) == ("6.12.3", 0x1234, ("netem",))
    (tmp_path / "b/linux").unlink()
    assert find_image([tmp_path]).version == "6.1.192"
    with pytest.raises(NoKernelError, match="make virtual"):
        find_image([tmp_path / "c"])


def test_an_image_that_is_there_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_KERNELS", str(tmp_path / "cache"))
    monkeypatch.setattr("testbed.net.virtual.kernel_build.missing_tools", list)
    made = image(tmp_path / "cache" / f"6.1.9-{recipe()}", "6.1.9", recipe())
    assert build(tree(tmp_path), again=False, progress=lambda line, share: None) == (made, False)


def test_tools_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.net.virtual.kernel_source.shutil.which", lambda name: None)
    with pytest.raises(VirtualClockError, match="bc binutils bison bzip2 flex gcc make tar xz-utils"):
        build(None, again=False, progress=lambda line, share: None)


def test_the_configuration_promises_every_option_once() -> None:
    names = re.findall(r"^(CONFIG_\w+)=", read_recipe_file("kernel.config"), re.MULTILINE)
    assert len(names) == len(set(names)) > 100
