"""One side of `against.py`: runs a network with the checkout that it is started in, as often as it is asked.

It uses public calls that every edition has, and says which package answered.
"""

import hashlib
import json
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

import spikezip

warnings.simplefilter("ignore")


@cache
def network(folder: str) -> tuple[Any, dict[str, Any]]:
    """The spiking network of a folder, and the float model's configuration."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return spikezip.convert(spikezip.load(folder)), config.get("float_config", config)


def inputs(config: dict[str, Any], batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if "image_size" in config:
        size = config["image_size"]
        return {"pixel_values": torch.randn(batch, config["num_channels"], size, size, generator=generator)}
    ids = torch.randint(999, 20_000, (batch, 24), generator=generator)
    mask = torch.ones_like(ids)
    mask[1::2, 16:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    snn, config = network(request["network"])
    batch = inputs(config, request["batch"])
    started = time.perf_counter()
    found = spikezip.simulate(snn, batch, request["steps"], request["engine"])
    seconds = time.perf_counter() - started
    digest = hashlib.sha256()
    for site, counts in sorted(found.spike_counts.items()):
        digest.update(f"{site} {list(counts.shape)}".encode() + counts.long().contiguous().numpy().tobytes())
    return {"seconds": seconds, "spikes": digest.hexdigest(), "package": spikezip.__file__}


for line in sys.stdin:
    try:
        result = answer(json.loads(line))
    except Exception as error:  # the other process shows it
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
