"""Parameters, gradients and optimizer states sharded (FSDP2), over all ranks or, with --replicate N, in N replicas.

torchrun --nproc-per-node 8 train_fsdp.py --model 8b --replicate 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from llama import MODELS, Llama, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="tiny")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--sequence", type=int, default=256)
parser.add_argument("--replicate", type=int, default=1)
asked = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
ranks = dist.get_world_size()
if asked.replicate > 1:
    shape = (asked.replicate, ranks // asked.replicate)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
else:
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("shard",))
sizes = MODELS[asked.model]
with torch.device("meta"):
    model = Llama(sizes)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers.values():
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(10):
    tokens = torch.randint(0, sizes.vocab_size, (asked.batch, asked.sequence), device="cuda")
    loss = loss_of(model(tokens), tokens)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
