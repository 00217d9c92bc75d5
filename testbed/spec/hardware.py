"""What computes in hosts, of a building and of some of its hosts: the file form and what it resolves to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Form, Strict
from testbed.spec.nics import NicSpec
from testbed.spec.value_types import ACCELERATOR, COMPUTE_DTYPES, SizeOrNone, choice


@dataclass(frozen=True)
class Hardware:
    """Of a host, where it is not as the workload says: its accelerators, what they multiply in, the memory of each.

    accelerator: a name of data/accelerators.yaml. memory_bytes: where it is not what that has.
    """

    accelerator: str | None = None
    compute_dtype: str | None = None
    memory_bytes: int | None = None

    def over(self, other: Hardware) -> Hardware:
        """This, and what the other says where this says nothing. Another accelerator has a memory of its own."""
        memory_bytes = self.memory_bytes
        if memory_bytes is None and self.accelerator in (None, other.accelerator):
            memory_bytes = other.memory_bytes
        return Hardware(
            self.accelerator or other.accelerator, self.compute_dtype or other.compute_dtype, memory_bytes
        )


THE_WORKLOADS = Hardware()


class HardwareSpec(Strict):
    """What computes in some hosts."""

    accelerator: Annotated[str | None, ACCELERATOR] = Field(
        default=None,
        description="What computes in its hosts, in place of `workload.accelerator`. A `workload.flops_utilisation` of "
        "one's own holds here in the same proportion.",
    )
    compute_dtype: Annotated[str | None, choice("a type", COMPUTE_DTYPES)] = Field(
        default=None,
        description="In which these multiply, in place of `workload.compute_dtype`: each has another peak. What "
        "travels has as many bytes.",
    )
    memory_bytes: SizeOrNone = Field(
        default=None,
        alias="memory",
        description="Of each accelerator, in place of what its data sheet has: what a search's configurations fit in.",
    )

    @property
    def hardware(self) -> Hardware:
        """What it says."""
        return Hardware(self.accelerator, self.compute_dtype, self.memory_bytes)


_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")
_EXPECTED = "numbers of hosts from 1, such as [1, 2] or 1-4"


def _parse_numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        first, last = int(found[1]), int(found[2])
        if first <= last:
            return tuple(range(first, last + 1))
    if isinstance(value, (list, tuple)) and value and all(type(one) is int and one > 0 for one in value):
        if len(set(value)) == len(value):
            return tuple(value)
        raise ValueError("each host once")
    raise ValueError(_EXPECTED)


def _write_numbers(value: tuple[int, ...]) -> str | list[int]:
    if len(value) > 1 and value == tuple(range(value[0], value[-1] + 1)):
        return f"{value[0]}-{value[-1]}"
    return list(value)


_NUMBERS = Form(
    _parse_numbers,
    {
        "anyOf": [
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "uniqueItems": True},
            {"type": "string", "pattern": f"^{_RANGE.pattern}$", "examples": ["1-4"]},
        ]
    },
    _write_numbers,
)


class UnlikeHostsSpec(HardwareSpec):
    """Hosts of a building that differ from its others."""

    hosts: Annotated[tuple[int, ...], _NUMBERS] = Field(
        description="Which ones, by their numbers in the building: [1, 2], or 1-2, are east1 and east2."
    )
    nic: NicSpec | None = Field(default=None, description="Their network card; the building's if left out.")

    def checks(self) -> Iterator[Finding]:
        """Something differs."""
        if self.nic is None and self.hardware == THE_WORKLOADS:
            yield Finding((), "hosts alone", "nic, accelerator, compute_dtype or memory beside them")
