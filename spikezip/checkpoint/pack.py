"""Weights as integers and scales: what `save(…, compact=True)` stores in place of floats, and the way back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import CheckpointError, ConfigError
from spikezip.quant.compact import Grid, decode, encode, grids, is_snapped

CODES, SCALE = ".codes", ".scale"
_INTEGERS = {8: torch.int8, 16: torch.int16}


def pack(model: Any, tensors: dict[str, Tensor], names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Replace each weight on a grid by its integers and scales, in place; returns the manifest's entry on them.

    `tensors` go by their name on disk; `names` gives that for each name in the state dict.
    """
    found = grids(model)
    if not found:
        raise ConfigError("compact=True: no weight lies on a grid; quantize with weight_bits=8 or embedding_bits=8")
    packed: dict[str, dict[str, Any]] = {}
    for key, on in found.items():
        name = names[key]
        if name not in tensors:
            continue  # tied to another name, under which it is stored
        input_name = None if on.input_scale is None else names[on.input_scale]
        input_scale = None if input_name is None else tensors[input_name]
        weight = tensors[name]
        if not is_snapped(weight, on, input_scale):
            raise ConfigError(
                f"compact=True: {name} is not on its grid; call spikezip.quant.compact.snap(qann) first, "
                "which forgets what training kept beside the grid"
            )
        codes, scale = encode(weight, on, input_scale)
        del tensors[name]
        tensors[name + CODES] = codes.to(_INTEGERS[on.bits]).contiguous()
        tensors[name + SCALE] = scale
        packed[name] = {"bits": on.bits, "dim": on.dim}
        if input_name is not None:
            packed[name]["input_scale"] = input_name
    return packed


def unpack(tensors: dict[str, Tensor], packed: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Put the weights back in place of their integers and scales; `where` is the folder, for errors."""
    for name, entry in packed.items():
        input_name = entry.get("input_scale")
        for part in filter(None, (name + CODES, name + SCALE, input_name)):
            if part not in tensors:
                raise CheckpointError(f"{where} lacks the tensor {part}, which its manifest lists as packed")
        codes, scale = tensors.pop(name + CODES), tensors.pop(name + SCALE)
        input_scale = None if input_name is None else tensors[input_name]
        tensors[name] = decode(codes, scale, Grid(entry["bits"], entry["dim"], input_name), input_scale)
