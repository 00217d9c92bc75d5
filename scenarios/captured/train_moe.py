"""Experts spread over ranks, tokens sent to them by all_to_all_single with split sizes as the router has them.

torchrun --nproc-per-node 8 train_moe.py --model mixtral
"""

import argparse
import os

import torch
import torch.distributed as dist
from llama import MODELS, FeedForward, Llama, Sizes, loss_of
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="tiny-experts")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--sequence", type=int, default=256)
asked = parser.parse_args()


class Experts(nn.Module):
    """A feed-forward layer of several experts, of which this rank has its part."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.experts, self.per_token = sizes.experts, sizes.experts_per_token
        self.gate = nn.Linear(sizes.dim, sizes.experts, bias=False)
        own = sizes.experts // dist.get_world_size()
        self.own = nn.ModuleList(FeedForward(sizes.dim, sizes.ffn_dim) for _ in range(own))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.per_token)
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)  # how many come from each rank for each expert of mine
        to = counts.view(dist.get_world_size(), -1).sum(1).tolist()
        come = theirs.view(dist.get_world_size(), -1).sum(1).tolist()
        sent = tokens[order // self.per_token]
        got = all_to_all_single(sent.new_empty(sum(come), sent.shape[1]), sent, come, to)
        parts = got.chunk(len(self.own))  # one expert's tokens after the other's, were they sorted
        done = torch.cat([expert(part) for expert, part in zip(self.own, parts, strict=True)])
        back = all_to_all_single(torch.empty_like(sent), done, to, come)
        out = torch.zeros_like(tokens).index_add(
            0, order // self.per_token, back * weights.flatten()[order, None]
        )
        return out.view_as(x)


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
sizes = MODELS[asked.model]
model = Llama(sizes)
for layer in model.layers.values():
    layer.feed_forward = Experts(sizes)
model = model.to(device, torch.bfloat16)
shared = [one for name, one in model.named_parameters() if ".own." not in name]
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(10):
    tokens = torch.randint(0, sizes.vocab_size, (asked.batch, asked.sequence), device=device)
    loss_of(model(tokens), tokens).backward()
    for one in shared:  # experts' gradients are whole, for all tokens came to them
        dist.all_reduce(one.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
