"""Programs that run kernels: on the GPU where there is one, else under Triton's interpreter.

Each in a process of its own: whether Triton interprets is decided when it is first imported.
"""

import os
import subprocess
import sys

import pytest
import torch


def check(program: str) -> None:
    """Run a program of assertions to its end."""
    pytest.importorskip("triton")
    env = {**os.environ} if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    run = [sys.executable, "-W", "ignore", "-c", program + "\nprint('to the end')"]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "to the end", done.stderr
