"""A process of a group ends well though an operation is still under way."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from spikezip.measure.processes import leave

# The first process does not wait for what it has begun, and forgets it. Without `leave`, half of such runs are aborted.
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from spikezip.measure.processes import leave

class Seen(torch.Tensor):
    pass

def begin():
    gathered = [torch.empty(1000).as_subclass(Seen) for _ in range(2)]
    return dist.all_gather(gathered, torch.ones(1000).as_subclass(Seen), async_op=True)

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
dist.barrier()
begun = [begin() for _ in range(4)]
if rank:
    for one in begun:
        one.wait()
del begun
leave()
"""


def test_an_operation_under_way(tmp_path: Path) -> None:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(rank)],
            env=settings,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said


def test_the_group_is_ended(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    leave()
    assert not dist.is_initialized()
    leave()  # once more does no harm
