"""Programs that run kernels: on the GPU where there is one, else under Triton's interpreter.

Each in a process of its own: whether Triton interprets is decided when it is first imported.
"""

import os
import subprocess
import sys

import pytest
import torch

# The interpreter puts its functions into Triton's language anew at every call of every kernel, and of every function
# that a kernel calls, which takes half of the time. Here nothing is ever compiled, so they may stay.
ONCE = """
from triton.runtime import interpreter


class Stay:
    def restore(self):
        pass


def put_once(function, put=interpreter._patch_lang, seen=set()):
    module = id(function.__globals__)
    if module not in seen:
        put(function)
        seen.add(module)
    return Stay()


interpreter._patch_lang = put_once
"""


def check(program: str) -> None:
    """Run a program of assertions to its end."""
    pytest.importorskip("triton")
    env = {**os.environ}
    if not torch.cuda.is_available():
        env["TRITON_INTERPRET"] = "1"
        program = ONCE + program
    run = [sys.executable, "-W", "ignore", "-c", program + "\nprint('to the end')"]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "to the end", done.stderr
