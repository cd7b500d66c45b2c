"""How a command ends that is one of several processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from shell import fails, ok, run, save_longformer

from spikezip.measure.processes import leave


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    leave()


@pytest.mark.usefixtures("group")
def test_when_it_is_done_it_leaves_the_group(home: Path) -> None:
    ok("inspect", home / "vit-qann")
    assert not dist.is_initialized()


@pytest.mark.usefixtures("group")
def test_so_it_does_with_an_exit_code_of_its_own(tmp_path: Path) -> None:
    save_longformer(tmp_path)
    assert run("inspect", tmp_path).exit_code == 1
    assert not dist.is_initialized()


@pytest.mark.usefixtures("group")
def test_after_an_error_it_does_not_wait_for_others(tmp_path: Path) -> None:
    fails("inspect", tmp_path)
    assert dist.is_initialized()
