"""Fixtures of the `net` lane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.net.links import LinkError
from testbed.net.links.netns import run_script
from tests.net.line import Line, two_hosts
from tests.net.namespaces import namespaces


@pytest.fixture
def line() -> Iterator[Line]:
    with two_hosts() as made:
        yield made


@pytest.fixture(params=["userspace", "netem"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    kind = str(request.param)
    skip_without(kind)
    return kind


def skip_without(engine_kind: str) -> None:
    """Skip a test of an engine that this kernel does not carry."""
    if engine_kind != "netem":
        return
    with namespaces(1) as (place,):
        try:
            run_script(
                place.pid,
                [
                    "ip link add dummy0 type veth",
                    "ip link add ifb0 type ifb",
                    "tc qdisc add dev dummy0 root netem delay 1ms",
                ],
            )
        except LinkError as error:
            pytest.skip(f"this kernel has no netem: {str(error).splitlines()[0]}")
