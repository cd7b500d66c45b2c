"""Compiled GPU kernels that decide codes fuse no product with a sum, except where the rounding rule says so.

Kernels are compiled without a GPU. In their code every instruction has the line that it comes from: a fused operation
may only come from `ops/rounding/triton.py`, where it gives an exact remainder, or from `exact_fma`, whose product needs
no rounding.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, linecache, re, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

NAMES = "fma|mad|add|sub|mul|div|sqrt|rcp|ex2|lg2|sin|cos|tanh"


class NoGPU:
    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return capability  # by which Triton keeps what it has compiled

    def get_current_stream(self, device=0):
        return 0


compiled, launch = {}, JITFunction.run


def compile_only(kernel, *args, grid, warmup=False, **settings):
    name = f"{kernel.__module__}.{kernel.__name__} {settings.get('name', '')} {len(compiled)}"
    compiled[name] = launch(kernel, *args, grid=grid, warmup=True, **settings)


driver.set_active(NoGPU())
JITFunction.run = compile_only
torch.cuda.device_of = lambda x: contextlib.nullcontext()

from spikezip.ops.elementary import triton as elementary
from spikezip.ops.grid import triton as grid
from spikezip.ops.lsq import triton as lsq
from spikezip.ops.neuron import Neurons, triton as neuron, triton_product
from spikezip.ops.norm import triton as norm
from spikezip.ops.sesa import triton as sesa, triton_training
from spikezip.ops.softmax import triton as softmax


def codes(*shape):
    return torch.zeros(shape, dtype=torch.int8)


x, half, row = torch.zeros(4, 6, 128), torch.tensor(0.5), torch.zeros(128)
neurons = Neurons(codes(6 * 128), half, -16, 15, 1, 2)


def launch_all():
    softmax.softmax(x)
    norm.layer_norm(x, row, row, 1e-6)
    norm.walk_norm(x, row, row, 1e-6, neurons)
    norm.walk_norm(x, row, row, 1e-6, neurons, (codes(4, 6, 128), half))
    for most in (1, 3):
        neuron.walk(x.view(4, -1), neurons._replace(tracer=torch.zeros(6 * 128), max_spike=most))
    grid.weight_grid(torch.zeros(6, 128), 8)
    grid.scale_bias(x, row, row)
    grid.add_scaled(x, codes(4, 6, 128), half)
    lsq.quantize(x, half, -16, 15)
    for name in ("exp", "log", "root", "inverse_root", "tanh", "sigmoid", "silu", "erf", "gelu", "gelu_tanh"):
        elementary.compute(name, x)
    elementary.compute("softplus", x, 1.0, 20.0)
    halves = torch.zeros(2, 40, 2, 64, dtype=torch.float16)
    for keys in (40, 300):
        k = torch.zeros(2, keys, 2, 64, dtype=torch.float16)
        triton_training.forward(halves, k, k, None, triton_training.Scales(half, half, half, half, 15, 0.125))
    if capability >= 90:  # these move whole tiles, as only such GPUs can
        triton_product.walk_products(
            codes(3, 64, 128), codes(1, 128, 128), row[None], row[None],
            neurons._replace(tracer=codes(1, 64 * 128), scale=half[None]),
        )
        for keys in (40, 300):
            q, k = codes(3, 2, 70, 2, 64), codes(3, 2, keys, 2, 64)
            p, o = sesa.Layer(codes(2, 2, 70, keys), half, 0, 15, 0), sesa.Layer(codes(2, 70, 2, 64), half, -16, 15, 0)
            for moved in ((), (torch.zeros(3, 2),) * 3):
                sesa.attention(q, k, k, torch.zeros(1, 70, keys), p, o, half, half, 1, 2, moved=moved)


def look():
    looked_at = 0
    for name, kernel in compiled.items():
        lines = kernel.asm["ptx"].splitlines()
        assert any(line.startswith(f".target sm_{capability}") for line in lines), name
        files = {m[1]: m[2] for line in lines if (m := re.match(r'\\s*\\.file\\s+(\\d+)\\s+"(.*)"', line))}
        here = ""
        for line in lines:
            if found := re.match(r"\\s*\\.loc\\s+(\\d+)\\s+(\\d+)", line):
                here = f"{files[found[1]]}:{found[2]}"
            instruction = re.match(r"\\s*(?:@!?%p\\d+\\s+)?((?:" + NAMES + r")\\.\\S*f(?:32|64)\\b)", line)
            if not instruction:
                continue
            looked_at += 1
            file, _, number = here.rpartition(":")
            says_so = "exact_fma(" in linecache.getline(file, int(number))
            exact = (says_so or file.endswith("ops/rounding/triton.py")) and instruction[1].startswith("fma.rn.")
            rounded = re.match(r"(add|sub|mul|div|sqrt)\\.rn\\.f", instruction[1])
            assert rounded or exact, (name, here, line)
    return looked_at


for capability in (80, 90):
    compiled.clear()
    launch_all()
    print(len(compiled), look())
"""


def test_no_product_is_fused_with_a_sum() -> None:
    pytest.importorskip("triton")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (kernels, instructions), (more, others) = (map(int, line.split()) for line in done.stdout.splitlines()[-2:])
    assert (kernels, more) == (23, 36)
    assert min(instructions, others) > 1000
