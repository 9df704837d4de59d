"""Programs of Lightning, of the Trainer of Hugging Face and of accelerate in a role with `torch_env`, on two replicas.

They know nothing about their launcher. Each replica writes its weights: in one training they are equal, although its
processes have seen different halves of the data.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.specs import Resource, Role
from tests.airflow.guarantees import Place, launch
from tests.airflow.support import FakeExecutionApi, run_task

START = """
import json, os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 4)
data = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]))
"""
END = """
weights = [round(each, 5) for each in layer.weight.detach().flatten().tolist()]
with open(os.environ["LAUNCH_RESULT_PATH"], "w") as file:
    json.dump({"rank": rank, "world": world, "steps": steps, "weights": weights}, file)
"""
LIGHTNING = """
import lightning

class Linear(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

trainer = lightning.Trainer(
    NODES, devices=1, accelerator="cpu", max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
model = Linear()
trainer.fit(model, DataLoader(data, batch_size=32))
layer, rank, world, steps = model.layer, trainer.global_rank, trainer.world_size, trainer.global_step
"""
WITH_NODES = LIGHTNING.replace("NODES", 'num_nodes=int(os.environ["WORLD_SIZE"])')
HUGGING_FACE = """
from transformers import Trainer, TrainingArguments

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}

model = Linear()
arguments = TrainingArguments(
    output_dir="out", use_cpu=True, num_train_epochs=2, per_device_train_batch_size=32, learning_rate=0.05,
    report_to="none", save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=[{"x": x, "labels": y} for x, y in data])
steps = trainer.train().global_step
layer, rank, world = model.layer, arguments.process_index, arguments.world_size
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
layer = nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
model, optimizer, batches = accelerator.prepare(layer, optimizer, DataLoader(data, batch_size=32))
steps = 0
for _ in range(2):
    for features, wanted in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(features), wanted))
        optimizer.step()
        steps += 1
rank, world = accelerator.process_index, accelerator.num_processes
accelerator.end_training()
"""
PROGRAMS = {"lightning": WITH_NODES, "transformers": HUGGING_FACE, "accelerate": ACCELERATE}
on_both = pytest.mark.parametrize(
    "place", [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("local", "slurm")], indirect=True
)
pytestmark = [pytest.mark.timeout(600), pytest.mark.engine("torch")]


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is missing; make torch installs it")


def trained(place: Place, folder: Path, program: str, replicas: int = 2) -> tuple[Any, Any]:
    """Return how a task with the program has ended, and its outcome."""
    (folder / "train.py").write_text(START + program + END)
    role = Role(
        "trainer",
        "",
        entrypoint=sys.executable,
        args=[str(folder / "train.py")],
        env={"OMP_NUM_THREADS": "1"},
        num_replicas=replicas,
        resource=Resource(cpu=1, gpu=0, memMB=2000),
        torch_env=True,
    )
    api = FakeExecutionApi()
    ran = run_task(launch(place, role, results="all", time_limit_s=500), api)
    return ran, api.xcoms.get((place.mark, "return_value"))


@on_both
@pytest.mark.parametrize("library", PROGRAMS)
def test_the_replicas_are_one_training(place: Place, library: str, tmp_path: Path) -> None:
    """On Slurm as well, whose own variables Lightning reads unless a launcher has marked its processes."""
    need(library)
    ran, outcome = trained(place, tmp_path, PROGRAMS[library])

    assert ran.error is None, (ran.error, ran.lines)
    found = outcome["result"]
    assert [(each["rank"], each["world"]) for each in found] == [(0, 2), (1, 2)]
    # Two epochs of eight batches, of which each process has half.
    assert [each["steps"] for each in found] == [8, 8]
    assert found[0]["weights"] == found[1]["weights"]


@on_both
def test_a_trainer_of_lightning_that_does_not_count_its_nodes_is_an_error(place: Place, tmp_path: Path) -> None:
    """It states the numbers; gloo would only report that a rank is not below the size of its group."""
    need("lightning")
    ran, _ = trained(place, tmp_path, LIGHTNING.replace("NODES", 'strategy="ddp"'))

    assert "`num_nodes=1` in Lightning" in str(ran.error)
    assert "does not match the world size (2)" in str(ran.error)
