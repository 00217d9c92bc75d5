"""Process groups that only record the requested operations; they replace every backend that a script names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future

BACKEND = "recording"

# per method of a group: the collective, and the index of the argument with the rank's larger array
_COLLECTIVES = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 0),
    "allgather_coalesced": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "gather": ("gather", 0),
    "scatter": ("scatter", 1),
}

Note = Callable[..., Any]
"""Records a collective of a group on tensors; returns a Work that records waits for it."""


BY_NAME: dict[str, RecordingGroup] = {}


class _NoBackend:
    """The backend of a group that scripts and PyTorch see, without any optional feature."""

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"capture: {name} of a group's backend")


_NO_BACKEND = _NoBackend()


class RecordedWork(c10d.Work):  # type: ignore[misc,unused-ignore]
    """The Work of a recorded operation."""

    def __init__(
        self, waited: Callable[[], None], result: Any, asked: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__()
        self._waited, self._result, self._asked = waited, result, asked

    def wait(self, timeout: Any = None) -> bool:
        """Record the wait and return True at once. `is_completed` does the same, or polling would never end."""
        self._waited()
        return True

    synchronize = block_current_stream = is_completed = wait

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None."""

    def result(self) -> Any:
        """Return the tensors."""
        return self._result

    def get_future(self) -> Any:
        """Return a completed future; its user (DDP's reducer, in C++) waits for it at the end of the backward pass."""
        self._asked(self._waited)
        future: Any = Future()
        future.set_result(self._result)
        return future


class RecordingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One group of ranks from this rank's point of view."""

    def __init__(self, rank: int, ranks: Sequence[int], key: str, note: Note) -> None:
        super().__init__(rank, len(ranks))
        self.own, self.ranks, self.key = rank, tuple(ranks), key
        self._note = note
        self.coalesced: list[Any] | None = None
        BY_NAME[key] = self
        self.made_name, self.made_desc = "", ""

    def note(self, *arguments: Any, **named: Any) -> Any:
        """Record an operation, see `Note`; it joins the operations that are being coalesced."""
        made = self._note(self, *arguments, **named)
        if self.coalesced is not None:
            self.coalesced.append(made)
        return made

    def name(self) -> str:
        """See c10d."""
        return BACKEND

    getBackendName = name

    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self.own

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return len(self.ranks)

    def _set_group_name(self, name: str) -> None:
        self.made_name = name
        BY_NAME[name] = self

    def _set_group_desc(self, desc: str) -> None:
        self.made_desc = desc

    @property
    def group_name(self) -> str:
        """The name by which functional collectives find the group."""
        return self.made_name

    @property
    def group_desc(self) -> str:
        """The purpose of the group."""
        return self.made_desc

    def _get_backend(self, device: Any) -> Any:
        return _NO_BACKEND

    def _start_coalescing(self, device: Any) -> None:
        self.coalesced = []

    def _end_coalescing(self, device: Any) -> RecordedWork:
        works, self.coalesced = self.coalesced or [], None

        def waited() -> None:
            for work in works:
                work.wait()

        return RecordedWork(waited, [], lambda _: None)

    def split_group(self, *_: Any, **__: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError("capture: split_group is not supported; new_group and meshes are")

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def barrier(self, opts: Any = None) -> RecordedWork:
        """See dist.barrier."""
        return self.note("barrier", [], [])  # type: ignore[no-any-return]

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """See dist.monitored_barrier."""
        self.note("barrier", [], []).wait()

    def alltoall_base(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> RecordedWork:
        """See dist.all_to_all_single."""
        for tensor, sizes in ((input, input_splits), (output, output_splits)):
            if sizes and sum(sizes) != tensor.shape[0]:
                raise ValueError(f"all_to_all_single: splits {list(sizes)} of {tensor.shape[0]} rows")
        row = int(input.numel() // input.shape[0]) if input.dim() and input.shape[0] else 1
        sizes = [int(count) for count in input_splits or ()]
        even = len({*sizes, *map(int, output_splits or sizes)}) <= 1
        splits = [] if even else [count * row for count in sizes]
        return self.note("all_to_all", [input], [output], splits=splits)  # type: ignore[no-any-return]

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """See dist.all_to_all."""
        splits = [part.numel() for part in inputs]
        even = len({*splits, *(part.numel() for part in outputs)}) == 1
        return self.note("all_to_all", inputs, outputs, splits=[] if even else splits)  # type: ignore[no-any-return]

    def send(self, tensors: Any, target: int, tag: int = 0) -> RecordedWork:
        """See dist.send."""
        return self.note("send", tensors, [], peer=self.ranks[target], tag=tag)  # type: ignore[no-any-return]

    def recv(self, tensors: Any, source: int, tag: int = 0) -> RecordedWork:
        """See dist.recv."""
        return self.note("recv", [], tensors, peer=self.ranks[source], tag=tag)  # type: ignore[no-any-return]

    def recv_anysource(self, tensors: Any, tag: int = 0) -> RecordedWork:
        """Raise NotImplementedError: the sender cannot be determined from one rank."""
        raise NotImplementedError("capture: receives from any rank are not supported, expected a source")


def _method(collective: str, larger: int) -> Any:
    def call(self: RecordingGroup, *arguments: Any, **named: Any) -> Any:
        given = [*arguments, *named.values()]
        opts = next((one for one in given if hasattr(one, "rootRank")), None)
        root = self.ranks[opts.rootRank] if opts is not None else None
        whole, times = _flat(given[larger]), 1
        if collective in ("gather", "scatter"):  # only the root has both arrays
            whole, times = _flat(given[1 - larger]), len(self.ranks)
        return self.note(collective, whole, _flat(given[0]), root=root, times=times)

    return call


for _name, (_collective, _larger) in _COLLECTIVES.items():
    setattr(RecordingGroup, _name, _method(_collective, _larger))


def _flat(found: Any) -> list[Any]:
    """Return all tensors of nested lists."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found for tensor in _flat(part)]


class World:
    """Creates groups in place of PyTorch's own. groups: members by the recorder's name, in order of creation."""

    def __init__(self, rank: int, size: int, note: Note) -> None:
        self.rank, self.size, self.note = rank, size, note
        self.groups: dict[str, tuple[int, ...]] = {}
        self.families: dict[str, str] = {}
        self._keys: dict[tuple[str, tuple[int, ...]], int] = {}

    def install(self) -> None:
        """Make init_process_group and new_group create groups of this world."""
        dist.Backend.register_backend(BACKEND, self._make, extended_api=True, devices=["cpu", "cuda"])
        helper = c10d._new_process_group_helper

        def make(
            size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *rest: Any, **more: Any
        ) -> Any:
            desc = more.get("group_desc") or (rest[4] if len(rest) > 4 else None)
            more.pop("backend_options", None)
            more.pop("device_id", None)
            members = tuple(map(int, tuple(ranks) or range(size)))
            self._next = members, self._key(desc, members)
            return helper(size, rank, ranks, BACKEND, store, name, *rest, **more)

        c10d._new_process_group_helper = make
        self._name_meshes()
        init = c10d.init_process_group

        def init_process_group(*arguments: Any, **named: Any) -> None:
            timeout = named.get("timeout")
            init(
                backend=BACKEND,
                store=dist.HashStore(),
                rank=self.rank,
                world_size=self.size,
                **({"timeout": timeout} if timeout is not None else {}),
            )

        for module in (dist, c10d, dist.device_mesh):
            module.init_process_group = init_process_group

    def _name_meshes(self) -> None:
        """Name the default group after a mesh dimension that has all ranks."""
        begin = dist.device_mesh.DeviceMesh.__init__

        def make(mesh: Any, *arguments: Any, **named: Any) -> None:
            begin(mesh, *arguments, **named)
            for dimension in mesh.mesh_dim_names or ():
                try:
                    group = mesh.get_group(dimension)
                except RuntimeError:  # a submesh, which gets its groups later
                    return
                if isinstance(group, RecordingGroup) and self.families[group.key] == "world":
                    self.families[group.key] = dimension

        dist.device_mesh.DeviceMesh.__init__ = make

    def _make(self, options: Any, _: Any) -> RecordingGroup:
        members, key = self._next
        return RecordingGroup(options.group_rank, members, key, self.note)

    def _key(self, desc: str | None, members: tuple[int, ...]) -> str:
        """Return a name that is the same on all ranks, from the group's purpose and its first member."""
        family = (desc or "").removeprefix("mesh_")
        if family in ("", "undefined"):
            family = "group"
        if family == "default_pg":
            family = "world"
        same = (family, members)
        again = self._keys[same] = self._keys.get(same, -1) + 1
        name = family if len(members) == self.size else f"{family} {members[0]}"
        if self.groups.get(name, members) != members:
            name = f"{name} of {','.join(map(str, members))}"
        name += f" again {again}" if again else ""
        self.groups[name] = members
        self.families[name] = family
        return name
