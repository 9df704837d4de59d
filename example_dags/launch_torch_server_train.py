"""The programs of `launch_torch_server`: a parameter server, and trainers that push their gradients to it.

The server never ends by itself. It finds the trainers at their store, whose address the launcher gives to every
replica, and publishes its own address there, so both programs work on every scheduler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import threading
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore

STEPS = 60


def serve(host: str, port: int) -> None:
    """Keep the parameters, and apply the gradients of all trainers, until the launcher stops this process."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    lock = threading.Lock()

    def answer(trainer: Connection) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                gradients = trainer.recv()
                with lock:
                    for parameter, gradient in zip(model.parameters(), gradients, strict=False):
                        parameter.grad = torch.tensor(gradient)
                    optimizer.step()
                    optimizer.zero_grad()
                    # Lists, because torch would share the memory of tensors, which needs one host.
                    trainer.send([parameter.tolist() for parameter in model.parameters()])

    key = secrets.token_hex()  # only a reader of the store can connect
    listener = Listener(("", 0), authkey=key.encode())
    with socket.create_connection((host, port), timeout=60) as to_store:
        own = to_store.getsockname()[0]
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))
    store.set("server", json.dumps([own, listener.address[1], key]))
    print(f"parameter server at {own}:{listener.address[1]}", flush=True)
    while True:
        threading.Thread(target=answer, args=[listener.accept()], daemon=True).start()


def train() -> None:
    """Train on the part of the data of this rank; rank 0 writes the last loss as the result."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*address, is_master=rank == 0, timeout=timedelta(seconds=60), wait_for_workers=False)
    host, port, key = json.loads(store.get("server"))
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))[rank::world]
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    model = nn.Linear(4, 1)
    loss = torch.tensor(0.0)
    with Client((host, port), authkey=key.encode()) as server:
        server.send([])  # no gradients yet, to get the first parameters
        for step in range(STEPS):
            for parameter, value in zip(model.parameters(), server.recv(), strict=True):
                parameter.data = torch.tensor(value)
            model.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if step % 20 == 0:
                print(f"rank {rank}, step {step}: loss {loss.item():.4f}", flush=True)
            server.send([parameter.grad.tolist() for parameter in model.parameters()])
        server.recv()
    store.set(f"ended-{rank}", "")
    if rank == 0:
        # It has the store, so it ends last.
        store.wait([f"ended-{other}" for other in range(world)])
        document = {"loss": loss.item(), "world": world}
        Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", nargs=2, metavar=("HOST", "PORT"), help="be the server; the address of the store")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]))
    else:
        train()
