"""What a figure was computed on."""

import platform

import torch


def device_name(device: torch.device) -> str:
    """The kind of device, and which it is: a CPU with the vector instructions that torch uses. For information.

    Example:
        >>> device_name(torch.device("cpu")).startswith("cpu (")
        True
    """
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
