# SPDX-License-Identifier: Apache-2.0
"""One process of a data-parallel training, started by torchrun: ddp_worker.py <parameters to write>."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_ext

BATCH = 8


def main(path: str):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch_ext.nn.ConvTranspose2d(6, 8, 4, stride=2, padding=1, groups=2),
        torch.nn.Tanh(),
        torch_ext.nn.ConvTranspose2d(8, 3, 3, stride=2, padding="same_upper"),
    ).double()
    data = torch.randn(BATCH, 6, 5, 4, dtype=torch.float64)
    mine = data.chunk(dist.get_world_size())[dist.get_rank()]
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        parallel(mine).pow(2).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    # torch's own threads race with the interpreter's end: now and then one is still joinable, and the process aborts. That is not
    # what is tested here.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
