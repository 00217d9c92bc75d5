"""Data parallelism: every rank trains a replica, whose gradients are reduced bucket by bucket.

torchrun --nproc-per-node 8 train_ddp.py --model 8b
"""

import argparse
import os

import torch
import torch.distributed as dist
from llama import MODELS, Llama, loss_of
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="tiny")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--sequence", type=int, default=256)
asked = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
sizes = MODELS[asked.model]
model = DistributedDataParallel(Llama(sizes).to(device), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=False)
for step in range(10):
    tokens = torch.randint(0, sizes.vocab_size, (asked.batch, asked.sequence), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_of(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
