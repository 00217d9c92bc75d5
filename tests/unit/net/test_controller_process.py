"""The controller's process: its events, its end, its refusals. No switch takes part."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testbed.net.controller import ControllerError, ControllerProcess
from testbed.net.controller.rules import Match, Output, Rule, dumps

RULES = {5: [Rule(200, Match(ipv4_dst="10.0.0.1/32"), (Output(1),)), Rule(0, Match())]}
COMMAND = [sys.executable, "-m", "testbed.net.controller"]
END_TIMEOUT_S = 10.0


@pytest.fixture
def controller() -> Iterator[ControllerProcess]:
    made = ControllerProcess(RULES)
    yield made
    made.stop()


def wait_until_loaded(process: ControllerProcess) -> None:
    """Until the library answers: it greets whoever connects."""
    with socket.create_connection(("127.0.0.1", process.port), END_TIMEOUT_S) as switch:
        hello = switch.recv(8)
    assert hello[:2] == bytes([4, 0])  # OpenFlow 1.3, HELLO


def test_it_listens_on_loopback_alone_and_answers_in_openflow_13(controller: ControllerProcess) -> None:
    controller.start()
    wait_until_loaded(controller)
    listening = psutil.Process(controller.pid).net_connections("inet")
    own = {tuple(connection.laddr) for connection in listening if connection.status == psutil.CONN_LISTEN}
    assert own == {("127.0.0.1", controller.port)}


def test_two_run_side_by_side(controller: ControllerProcess) -> None:
    other = ControllerProcess(RULES)
    controller.start()
    other.start()
    try:
        assert controller.port != other.port
        assert controller.alive()
        assert other.alive()
    finally:
        other.stop()
    assert controller.alive()
    assert not other.alive()


def test_waiting_in_vain_names_the_switches(controller: ControllerProcess) -> None:
    controller.start()
    wait_until_loaded(controller)
    with pytest.raises(ControllerError, match=r"(?s)datapath ids 0000000000000005 after 0.1 s.*os-ken"):
        controller.wait_ready(0.1)
    assert controller.failure() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_on_signals(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "rules.json"
    file.write_text(dumps(RULES))
    with subprocess.Popen([*COMMAND, "--rules", str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
        assert event["event"] == "listening"
        with socket.create_connection(("127.0.0.1", event["port"]), END_TIMEOUT_S) as switch:
            assert switch.recv(8)  # its threads are running
            process.send_signal(number)
            assert process.wait(END_TIMEOUT_S) == 0
        assert process.stdout.read() == ""


def test_it_takes_the_port_it_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "rules.json"
        file.write_text(dumps(RULES))
        command = [*COMMAND, "--rules", str(file), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False)
    assert done.returncode == 2
    event = json.loads(done.stdout)
    assert event["event"] == "error"
    assert "Address already in use" in event["message"]


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "Expecting"), ('{"format": 9, "datapaths": []}', "format: got 9")]
)
def test_bad_rules_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "rules.json"
    file.write_text(text)
    command = [*COMMAND, "--rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False)
    assert done.returncode == 2
    event = json.loads(done.stdout)
    assert str(file) in event["message"]
    assert complaint in event["message"]


def test_it_dies_with_the_one_who_started_it() -> None:
    program = """
import os, sys
from testbed.net.controller import ControllerProcess
process = ControllerProcess({})
process.start()
print(process.pid, process.port, flush=True)
sys.stdin.read()
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        assert psutil.pid_exists(pid)
        parent.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        orphan = psutil.Process(pid)
        orphan.wait(END_TIMEOUT_S)


def test_its_death_is_a_failure_with_its_last_words(controller: ControllerProcess) -> None:
    controller.start()
    wait_until_loaded(controller)
    os.kill(controller.pid, signal.SIGKILL)
    with pytest.raises(
        ControllerError, match=r"(?s)the process ended with status -9.*controller library os-ken"
    ):
        controller.wait_ready(END_TIMEOUT_S)
    assert not controller.alive()
    assert "status -9" in str(controller.failure())


def test_an_unknown_library_is_refused() -> None:
    process = ControllerProcess(RULES, "floodlight")
    process.start()
    try:
        with pytest.raises(ControllerError, match="got 'floodlight', expected one of os-ken, ryu"):
            process.wait_ready(END_TIMEOUT_S)
    finally:
        process.stop()


def test_an_interpreter_without_the_testbed_is_told(tmp_path: Path) -> None:
    process = ControllerProcess(RULES, python="/usr/bin/env", env={"PATH": str(tmp_path)})
    process.start()
    try:
        with pytest.raises(
            ControllerError, match=r"(?s)the process ended with status .*its standard error:\n.*env"
        ):
            _ = process.port
    finally:
        process.stop()
    with pytest.raises(ControllerError, match="/nowhere/python: No such file"):
        ControllerProcess(RULES, python="/nowhere/python").start()


def test_before_the_start_there_is_nothing(controller: ControllerProcess) -> None:
    assert not controller.alive()
    for use in (lambda: controller.port, lambda: controller.pid, lambda: controller.wait_ready(1)):
        with pytest.raises(ControllerError, match="not started"):
            use()


def test_the_errors_of_the_process_reach_the_one_who_waits(controller: ControllerProcess) -> None:
    controller.start()
    wait_until_loaded(controller)
    with socket.create_connection(("127.0.0.1", controller.port), END_TIMEOUT_S) as switch:
        switch.sendall(bytes.fromhex("0400000800000001"))  # HELLO
        switch.recv(100)  # HELLO, FEATURES_REQUEST
        features = "04060020 00000002 0000000000000063 00000000 fe 00 0000 0000004f 00000000"
        switch.sendall(bytes.fromhex(features.replace(" ", "")))
        ports = "04130010 00000003 000d0000 00000000"
        switch.sendall(bytes.fromhex(ports.replace(" ", "")))
        with pytest.raises(ControllerError, match="datapath id 0000000000000063 connected"):
            controller.wait_ready(END_TIMEOUT_S)
    assert "no rules" in str(controller.failure())
    assert controller.alive()
