#!/usr/bin/env bash
# PyTorch 2.13.0 (the CPU build): with the Gloo backend the flight recorder leaves every operation `scheduled`, without a
# time of its end, after it has ended well: what has ended is told by `retired` alone. Point-to-point messages are not
# recorded, and the dump's table of groups has one without a name, where operations name their group "0".
# Who goes by `state`, as for NCCL, takes a healthy job for one in which nothing was ever completed.
# Expected: `completed`, an end, messages among the operations, and groups under the names that operations have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0+cpu 'numpy<3'
cd "$folder"
cat > job.py <<'PYTHON'
import os
import pickle
import sys

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
for _ in range(3):
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 8
if rank == 0:
    dist.send(torch.ones(1), 1)
else:
    dist.recv(torch.ones(1), 0)
dist.barrier()
dump = pickle.loads(_dump_fr_trace())
if rank == 0:
    told = [(entry["profiling_name"], entry["state"], entry["retired"]) for entry in dump["entries"]]
    ends = {entry["time_discovered_completed_ns"] for entry in dump["entries"]}
    groups = {entry["process_group"][0] for entry in dump["entries"]}
    print("version", dump["version"], "operations:", *told, sep="\n  ")
    print("their ends:", ends, "their groups:", groups, "groups of the dump:", list(dump["pg_config"]))
    assert told == 3 * [("gloo:all_reduce", "scheduled", True)] + [("gloo:barrier", "scheduled", True)]
    assert ends == {None}
    assert groups == {"0"} and list(dump["pg_config"]) == [""]
dist.destroy_process_group()
PYTHON
venv/bin/python job.py 1 &
venv/bin/python job.py 0
wait $!
echo "PyTorch 2.13.0, Gloo: as described"
