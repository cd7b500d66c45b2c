"""Kernels are imported for their doctests only where Triton is installed (it is on Linux)."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["spikezip/ops/*/triton.py"]
