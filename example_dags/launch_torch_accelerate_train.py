"""The program of `launch_torch_accelerate`: a training with accelerate that knows nothing about its launcher.

`Accelerator()` reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; `torch_env=True` of the role sets them,
so there is neither `accelerate config` nor `accelerate launch`. Without these variables each replica would be a
training of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8


def main() -> None:
    """Train, and write the loss of all processes as the result."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    data = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32))
    total, seen = torch.tensor(0.0), 0
    for epoch in range(EPOCHS):
        total, seen = torch.tensor(0.0, device=accelerator.device), 0
        for features, wanted in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), wanted)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
            seen += 1
        accelerator.print(f"epoch {epoch}: loss {total.item() / seen:.4f}", flush=True)
    mean = accelerator.reduce(total / seen, reduction="mean").item()
    # All processes take part in the count, so it shows that they are one training.
    steps = accelerator.reduce(torch.tensor(float(seen), device=accelerator.device), reduction="sum").item()
    if accelerator.is_main_process:
        document = {"loss": mean, "world": accelerator.num_processes, "steps": int(steps)}
        Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(document), encoding="utf-8")
    accelerator.end_training()


if __name__ == "__main__":
    main()
