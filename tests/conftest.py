"""Shared settings: quiet transformers, one seed, no device but the CPU unless a test asks for another."""

import gc
import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

# They hold no examples, and two modules of one name cannot both be collected for them.
collect_ignore = ["conftest.py", "cli/conftest.py", "engines/on_gpu.py"]

sys.path.insert(0, str(Path(__file__).parent))
logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> None:
    """What is there by now stays, modules above all. Looking through it would take half of a short training's time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
