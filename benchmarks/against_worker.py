"""One side of `against.py`: runs a network of the checkout that it is started in, as often as it is asked."""

import hashlib
import json
import sys
import time
import warnings
from functools import cache
from typing import Any

import torch

warnings.simplefilter("ignore")


@cache
def network(folder: str) -> tuple[Any, Any]:
    """A function that runs a batch, and the model's config."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    try:
        from spikezip.engines.simulate import run
        from spikezip.engines.state import Drive
        from spikezip.models.format1 import read_format1
    except ImportError:  # the first edition
        import spikezip

        snn = spikezip.convert(spikezip.load(folder))
        return lambda batch, steps, engine: spikezip.simulate(snn, batch, steps, engine), config
    frozen = read_format1(folder).frozen()
    return lambda batch, steps, engine: run(frozen, batch, Drive(engine=engine, steps=steps)), config


def inputs(config: Any, batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if hasattr(config, "image_size"):
        return {"pixel_values": torch.randn(batch, 3, config.image_size, config.image_size, generator=generator)}
    ids = torch.randint(999, 20_000, (batch, 24), generator=generator)
    mask = torch.ones_like(ids)
    mask[1::2, 16:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    runs, config = network(request["network"])
    batch = inputs(config, request["batch"])
    started = time.perf_counter()
    found = runs(batch, request["steps"], request["engine"])
    seconds = time.perf_counter() - started
    counts = torch.stack([found.spike_counts[site] for site in sorted(found.spike_counts)]).contiguous()
    return {"seconds": seconds, "spikes": hashlib.sha256(counts.numpy().tobytes()).hexdigest()}


for line in sys.stdin:
    try:
        result = answer(json.loads(line))
    except Exception as error:  # the other process shows it
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
