"""The program of `launch_torch_search`: each replica is one process of a training with PyTorch, without torchrun.

The launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (`torch_env=True` of the role), so `init_process_group`
needs no argument, and programs with accelerate, Lightning or the Trainer of Hugging Face work unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 8


def main() -> None:
    """Train, continue at the last checkpoint, and write the loss as the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--kill-once", action="store_true", help="end rank 1 by SIGKILL in the first attempt")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["LAUNCH_ATTEMPT"])
    path, first = Path(os.environ["LAUNCH_CHECKPOINT_DIR"]) / "last.pt", 0

    torch.manual_seed(0)
    x = torch.randn(256, 4)[rank::world]
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
        print(f"rank {rank} of {world} continues at epoch {first}, attempt {attempt}", flush=True)
    total = torch.tensor(float("nan"))
    for epoch in range(first, EPOCHS):
        if given.kill_once and attempt == 0 and (rank, epoch) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / world:.4f}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, f"{path}.new")
            Path(f"{path}.new").replace(path)
        # No process is ahead of the checkpoint.
        dist.barrier()
    if rank == 0:
        # A loss of NaN, as with the highest learning rate, becomes null in the result.
        document = {"lr": given.lr, "loss": total.item() / world, "world": world, "resumed_at": first}
        Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(document), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
