"""The bootstrap script's decisions, with stand-ins for the system's commands; and what the lock files must be."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
LOCKS = sorted((CHECKOUT / "requirements").glob("*.lock"))


def bootstrap(code: str, tmp_path: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Source the script, then run `code`; what stand-ins call `note` with ends up in `$CALLS`."""
    script = f"""
    source {CHECKOUT}/tools/bootstrap
    CALLS={tmp_path}/calls; touch $CALLS
    note() {{ echo "$*" >>"$CALLS"; }}
    as_root() {{ note "$@"; }}
    {f"PATH={path}" if path else ""}
    {code}
    """
    return subprocess.run(
        ["/bin/bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHON": "/usr/bin/python3", "TMPDIR": str(tmp_path)},
    )


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def programs(folder: Path, *names: str) -> str:
    """A path with these programs, and the few that the script itself needs."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    for name in ("sort", "tr", "mktemp", "rm", "tail", "cat", "grep", "env", "id"):
        found = subprocess.run(
            ["/bin/bash", "-c", f"command -v {name}"], capture_output=True, text=True, check=True
        )
        (folder / name).symlink_to(found.stdout.strip())
    return str(folder)


ALL_BUT_TWO = (
    "ovs-vsctl",
    "ovs-vswitchd",
    "ip",
    "tc",
    "ethtool",
    "ping",
    "iperf3",
    "pgrep",
    "sysctl",
    "unshare",
    "gcc",
)


def test_only_packages_of_missing_commands_are_missing(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", *ALL_BUT_TWO)
    found = bootstrap("PYTHON=/elsewhere/python3; missing_packages", tmp_path, path)
    assert found.stdout.split() == ["mininet", "tcpdump"]


def test_a_package_with_several_missing_commands_is_named_once(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", "mnexec", "tcpdump", *ALL_BUT_TWO[4:])
    found = bootstrap("PYTHON=/elsewhere/python3; missing_packages", tmp_path, path)
    assert found.stdout.split() == ["iproute2", "openvswitch-switch"]


def test_a_system_python_without_pip_for_environments_is_noticed(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", "mnexec", "tcpdump", *ALL_BUT_TWO)
    crippled = tmp_path / "python3"
    crippled.write_text("#!/bin/sh\nexit 1\n")
    crippled.chmod(0o755)
    found = bootstrap(f"SYSTEM_PYTHON={crippled}; PYTHON={crippled}; missing_packages", tmp_path, path)
    assert found.stdout.split() == ["python3-venv"]


KNOWN = 'apt-cache() { echo "Candidate: 1.0"; };'
UNKNOWN = 'apt-cache() { echo "Candidate: (none)"; };'


def test_installing_says_so_first_and_asks_nothing(tmp_path: Path) -> None:
    found = bootstrap(f"{KNOWN} say() {{ note say $*; }}; install_packages iperf3 mininet", tmp_path)
    assert found.returncode == 0, found.stderr
    said, installed = calls(tmp_path)
    assert said == "say installing with apt, as root: iperf3 mininet"
    assert installed.startswith("env DEBIAN_FRONTEND=noninteractive ")
    assert installed.endswith(" install --no-install-recommends iperf3 mininet")


def test_package_lists_are_fetched_only_when_something_is_unknown(tmp_path: Path) -> None:
    stand_ins = """
    apt-cache() { [ -e $TMPDIR/fresh ] && echo "Candidate: 1.0"; }
    as_root() { note $*; touch $TMPDIR/fresh; }
    """
    assert bootstrap(stand_ins + "install_packages mininet", tmp_path).returncode == 0
    assert [re.findall(r" (update|install)\b", line)[0] for line in calls(tmp_path)] == ["update", "install"]


def test_package_lists_are_fetched_anew_when_installing_fails_once(tmp_path: Path) -> None:
    code = (
        KNOWN + 'as_root() { note $*; [[ "$*" == *update* ]] && touch $TMPDIR/fresh; [ -e $TMPDIR/fresh ]; };'
    )
    assert bootstrap(code + "install_packages mininet", tmp_path).returncode == 0
    words = [re.findall(r" (update|install)\b", line)[0] for line in calls(tmp_path)]
    assert words == ["install", "update", "install"]


def test_a_package_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    found = bootstrap(f"{UNKNOWN} install_packages mininet", tmp_path)
    assert found.returncode == 1
    assert "error: not in this machine's apt sources: mininet (on Ubuntu" in found.stderr


def test_what_apt_said_is_shown_when_it_fails(tmp_path: Path) -> None:
    code = f"{KNOWN} as_root() {{ echo 'E: disk full'; return 100; }}; install_packages mininet"
    found = bootstrap(code, tmp_path)
    assert found.returncode == 1
    assert "E: disk full" in found.stderr
    assert "error: apt could not install: mininet" in found.stderr


def test_without_apt_the_packages_are_named(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin")
    found = bootstrap("install_packages mininet tcpdump", tmp_path, path)
    assert found.returncode == 1
    assert "there is no apt here to install it from: mininet tcpdump" in found.stderr


def test_nothing_is_installed_when_nothing_is_missing(tmp_path: Path) -> None:
    found = bootstrap("missing_packages() { :; }; stage_system", tmp_path)
    assert (found.returncode, found.stderr, calls(tmp_path)) == (0, "", [])


SWITCH = "switch_runs() { [ -e $TMPDIR/runs ]; }; OVS_CTL=ovs-ctl;"


def test_a_running_switch_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    found = bootstrap(f"{SWITCH} stage_switch", tmp_path)
    assert (found.returncode, found.stderr, calls(tmp_path)) == (0, "", [])


@pytest.mark.parametrize(
    ("folder", "command"),
    [("/", "systemctl start openvswitch-switch"), ("/nowhere", "ovs-ctl start --system-id=random")],
)
def test_a_switch_that_does_not_run_is_started(tmp_path: Path, folder: str, command: str) -> None:
    code = f"{SWITCH} SYSTEMD_MARK={folder}; as_root() {{ note $*; touch $TMPDIR/runs; }}; stage_switch"
    found = bootstrap(code, tmp_path)
    assert found.returncode == 0
    assert "starting Open vSwitch" in found.stderr
    assert calls(tmp_path) == [command]


def test_a_starter_that_gives_up_over_the_kernel_module_is_helped(tmp_path: Path) -> None:
    """As with systemd or ovs-ctl where modprobe fails: the database runs, the switch does not."""
    starter = "as_root() { note $*; [ $1 = ovs-vswitchd ] && touch $TMPDIR/runs; };"
    assert bootstrap(f"{SWITCH} SYSTEMD_MARK=/; {starter} stage_switch", tmp_path).returncode == 0
    assert [line.split()[0] for line in calls(tmp_path)] == ["systemctl", "ovs-vswitchd"]


def test_a_switch_that_never_starts_is_an_error_with_its_words(tmp_path: Path) -> None:
    code = f"{SWITCH} SYSTEMD_MARK=/nowhere; as_root() {{ echo no shared memory; return 1; }}; stage_switch"
    found = bootstrap(code, tmp_path)
    assert found.returncode == 1
    assert "no shared memory" in found.stderr
    assert "error: Open vSwitch does not start" in found.stderr


def test_an_old_python_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    found = bootstrap(f"PYTHON={old}; check_python", tmp_path)
    assert found.returncode == 1
    assert f"error: {old} is Python 3.9.2; the testbed needs Python 3.10 or newer" in found.stderr


ENVIRONMENT = """
CHECKOUT={folder}; cd $CHECKOUT; mkdir -p requirements tools .venv/bin
echo one >requirements/testbed.lock; touch pyproject.toml tools/bootstrap .venv/bin/testbed; chmod +x .venv/bin/testbed
check_python() {{ :; }}; make_environment() {{ note "made $*"; }}
"""


def test_an_environment_is_made_once_and_again_when_the_lock_changes(tmp_path: Path) -> None:
    code = ENVIRONMENT.format(folder=tmp_path) + "stage_environment; stage_environment; note --;"
    found = bootstrap(code + "echo two >requirements/testbed.lock; stage_environment", tmp_path)
    assert found.returncode == 0, found.stderr
    assert calls(tmp_path) == ["made .venv testbed.lock", "--", "made .venv testbed.lock"]


def test_an_environment_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    code = ENVIRONMENT.format(folder=tmp_path) + 'make_environment() { note "tried $*"; return 1; };'
    found = bootstrap(code + "(stage_environment) || (stage_environment)", tmp_path)
    assert calls(tmp_path) == ["tried .venv testbed.lock"] * 2
    assert "error: the Python packages of requirements/testbed.lock could not be installed" in found.stderr


def test_ryu_that_cannot_be_installed_is_said_and_goes_on(tmp_path: Path) -> None:
    code = ENVIRONMENT.format(folder=tmp_path) + "make_environment() { [ $1 = .venv ]; }; stage_ryu"
    found = bootstrap(code, tmp_path)
    assert found.returncode == 0
    assert "tests on Ryu will be skipped" in found.stderr
    assert not any((tmp_path / ".venv-ryu").glob("*"))


MAKER = """
cat >python <<'END'
#!/bin/sh
case "$*" in
-m\\ venv\\ *) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "made $3" >>"$CALLS" ;;
-VV) echo Python 3 ;;
esac
END
chmod +x python; PYTHON=$PWD/python; export CALLS; echo numpy >wanted
"""


def test_environments_of_others_are_kept_for_all_checkouts_by_what_is_in_them(tmp_path: Path) -> None:
    code = f"""
    cd {tmp_path}; KEPT={tmp_path}/kept; {MAKER}
    mkdir one two; ln -s ../wanted one; ln -s ../wanted two
    for checkout in one two one; do (cd $checkout; other_people .venv-peers wanted true); done
    readlink one/.venv-peers two/.venv-peers
    rm -rf one/.venv-peers
    echo torch >wanted; (cd two; other_people .venv-peers wanted true); readlink two/.venv-peers
    """
    done = bootstrap(code, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.split()
    assert first == second != third
    assert calls(tmp_path) == [f"made {first}", f"made {third}"]
    assert {Path(kept, ".installed").read_text() for kept in (first, third)} == {"numpy\n", "torch\n"}


@pytest.mark.parametrize("there", [True, False])
def test_environments_of_others_are_in_the_checkout_where_they_cannot_be_kept(
    tmp_path: Path, there: bool
) -> None:
    """Where a folder is there already, it may be another machine's mount; and not everybody may write for all."""
    code = f"""
    cd {tmp_path}; KEPT={f"{tmp_path}/kept" if there else "/proc/none"}; {MAKER}
    {"mkdir .venv-peers" if there else ""}
    for again in 1 2; do other_people .venv-peers wanted true; done
    """
    done = bootstrap(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path) == ["made .venv-peers"]
    assert not (tmp_path / ".venv-peers").is_symlink()
    assert not (tmp_path / "kept").exists()


def test_an_unknown_stage_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    command = [str(CHECKOUT / "tools/bootstrap"), "environment", "everything"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "no stage 'everything'; there are: system switch kernel rdma environment " in found.stderr


def test_there_are_locks() -> None:
    assert [path.name for path in LOCKS] == [
        "build.lock", "installer.lock", "ryu.lock", "site.lock", "testbed.lock",
    ]  # fmt: skip


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_every_package_with_hashes_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    entries = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[\w.]+( ; .*)? \\\n", entry), entry[:80]
        assert "--hash=sha256:" in entry


def test_the_locks_cover_what_the_project_asks_for() -> None:
    """A dependency added to pyproject.toml without `make lock` would be missing after set-up."""
    metadata = (CHECKOUT / "pyproject.toml").read_text()
    for lock, lists in (
        ("testbed.lock", ("dependencies", "dev", "browser")),
        ("site.lock", ("site",)),
        ("ryu.lock", ("dependencies", "ryu")),
        ("build.lock", ("build",)),
        ("installer.lock", ("installer",)),
    ):
        pinned = set(
            re.findall(r"^([a-z0-9-]+)==", (CHECKOUT / "requirements" / lock).read_text(), re.MULTILINE)
        )
        for name in lists:
            block = re.search(rf"^{name} = \[(.*?)\]", metadata, re.DOTALL | re.MULTILINE)
            assert block, name
            # groups are looked at by themselves
            named = re.sub(r"\{ include-group = [^}]*\}|#.*", "", block[1])
            wanted = {re.split(r"[<>=]", item)[0].lower() for item in re.findall(r'"([^"]+)"', named)}
            assert wanted <= pinned, (lock, wanted - pinned)
