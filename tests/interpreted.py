"""Programs that run kernels: on the GPU where there is one, else under Triton's interpreter.

Each in a process of its own: whether Triton interprets is decided when it is first imported. Under the interpreter
these are forks of a process that has imported already what programs need, which takes longer than most of them.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

# The interpreter puts its functions into Triton's language anew at every call of every kernel, and of every function
# that a kernel calls, which takes half of the time. Here nothing is ever compiled, so they may stay. And it makes a
# table of all types whenever it looks one up.
ONCE = """
from functools import cache

from triton import language
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


def np_dtype(dtype, find=interpreter._get_np_dtype, plain=cache(interpreter._get_np_dtype)):
    return plain(dtype) if type(dtype) is language.dtype else find(dtype)


interpreter._patch_lang, interpreter._get_np_dtype = put_once, np_dtype
"""

# Reads a program and a file per line; tells each program's exit status, and leaves in the file what it printed.
FORKING = """
import gc, json, os, sys, traceback
import torch, torch._dynamo, torch.export, transformers, spikezip
import spikezip.engines.folded, spikezip.models.huggingface

gc.collect()
gc.freeze()
for line in sys.stdin:
    program, printed = json.loads(line)
    process = os.fork()
    if process == 0:
        out = os.open(printed, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1), os.dup2(out, 2)
        status = 1
        try:
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
os._exit(0)
"""


def check(program: str, *, alone: bool = False) -> None:
    """Run a program of assertions to its end; `alone` with nothing imported before it, in the environment of now."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        program = ONCE + program
        if not alone:
            check_forked(program)
            return
    env = {**os.environ} if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    run = [sys.executable, "-W", "ignore", "-c", program + "\nprint('to the end')"]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "to the end", done.stderr


def check_tests(file: str, named: str) -> None:
    """Run those tests of a file whose names hold a word."""
    # The process that is forked has imported what pytest would like to rewrite.
    words = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-k", named, file]
    check(f"import pytest\nassert pytest.main({words!r}) == 0")


def check_forked(program: str) -> None:
    """Run a program under the interpreter, in a fork."""
    process = _forking()
    assert process.stdin is not None
    assert process.stdout is not None
    with TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        process.stdin.write(json.dumps([program, str(printed)]) + "\n")
        process.stdin.flush()
        status = process.stdout.readline().strip()
        assert status == "0", f"{printed.read_text() if printed.exists() else ''}\nended with {status or 'nothing'}"


@cache
def _forking() -> subprocess.Popen[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-W", "ignore", "-c", FORKING]
    process = subprocess.Popen(run, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
