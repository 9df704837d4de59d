"""The training of `gpu_training.py`: each process is one rank, and writes what it saw into the result."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def main(backend: str) -> None:
    """Train with the backend of torch.distributed; rank 0 writes the devices of all ranks."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(256, 4)[rank::world].to(device)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]], device=device)
    ids = [device.index] if backend == "nccl" else None
    model = DistributedDataParallel(nn.Linear(4, 1).to(device), device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros((), device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
    seen = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "count": torch.cuda.device_count()}
    every = [None] * world
    dist.all_gather_object(every, seen)
    if rank == 0:
        document = {"world": world, "backend": dist.get_backend(), "loss": total.item() / world, "ranks": every}
        Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(document), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
