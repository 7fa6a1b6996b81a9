"""Run by torchrun in tests: one rank of the check of an emulated rate; rank 0 writes what it found."""

import sys
from pathlib import Path

import msgspec
import torch.distributed as dist

from shardscope.measure.rate import check_rate

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = check_rate(dist.group.WORLD, float(sys.argv[2]))
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_bytes(msgspec.json.encode(found))
    dist.destroy_process_group()
