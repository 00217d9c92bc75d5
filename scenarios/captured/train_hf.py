"""A Llama or Mixtral of Hugging Face's transformers, from a configuration without weights, sharded by FSDP2.

torchrun --nproc-per-node 8 train_hf.py --model llama --layers 32
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("llama", "mixtral"), default="llama")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--sequence", type=int, default=256)
asked = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
kind, made = {"llama": (LlamaConfig, LlamaForCausalLM), "mixtral": (MixtralConfig, MixtralForCausalLM)}[
    asked.model
]
config = kind(
    hidden_size=asked.width,
    intermediate_size=asked.width * 7 // 2,
    num_hidden_layers=asked.layers,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1024,
    use_cache=False,
)
model = made(config).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(10):
    tokens = torch.randint(0, config.vocab_size, (1, asked.sequence), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
