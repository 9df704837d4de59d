"""The program of `launch_torch_ddp`: several processes train a small model, starting from the last checkpoint.

`torchrun` starts it on each node; every process reads its rank from the variables `RANK` and `WORLD_SIZE`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 12
ROWS = 512
FAILING_RANK, FAILING_EPOCH = 3, 4


def data(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this process's share of the rows of a linear function with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 0.01 * torch.randn(ROWS, 1, generator=generator)
    return x[rank::world], y[rank::world]


def main() -> None:
    """Train, save a checkpoint after each epoch, and write the last loss as the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", required=True, type=Path, help="directory that all nodes see")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--fail-once", action="store_true", help="let one process fail in the first attempt")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt, node = int(os.environ.get("LAUNCH_ATTEMPT", "0")), os.environ.get("LAUNCH_REPLICA_ID", "0")

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    path, first = given.checkpoints / "last.pt", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
        print(f"rank {rank} of {world} on node {node}: going on at epoch {first}, attempt {attempt}", flush=True)
    x, y = data(rank, world)
    loss = torch.tensor(0.0)
    for epoch in range(first, EPOCHS):
        if given.fail_once and attempt == 0 and (rank, epoch) == (FAILING_RANK, FAILING_EPOCH):
            sys.exit(f"rank {rank} fails on purpose in epoch {epoch}")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # gradients are averaged over all processes here
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / world:.4f}", flush=True)
            given.checkpoints.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, f"{path}.new")
            Path(f"{path}.new").replace(path)
        # No process is ahead of the checkpoint.
        dist.barrier()
        loss = total / world
    # Rank 0 may run on any node: each replica may write the result.
    if rank == 0 and (result := os.environ.get("LAUNCH_RESULT_PATH")):
        document = {"loss": round(loss.item(), 4), "world": world, "epochs": EPOCHS, "resumed_at": first}
        Path(result).write_text(json.dumps(document), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
