"""Every family, exactly: engines give equal spikes in every step, and the end is the quantized network.

Settings are sampled pairwise, and families go round them. All of them take several minutes: `make test-families` runs
them all, `make test` those named here.
"""

import os
from typing import Any

import families
import pytest
import tiny_models
import torch
from captured import assert_equal_runs, frozen, one_sample, trains

from spikezip.engines.engine import Drive
from spikezip.engines.loop import ENGINES, resolve_engine, run
from spikezip.engines.quantized import quantized
from spikezip.errors import ConfigError
from spikezip.program.layout import batch_layout
from spikezip.quant.config import QuantConfig

# One row per run: (levels, weight bits, placement, coding, largest spike, stagger, chunk). Each pair of values occurs.
SETTINGS = [
    (4, 8, "paper", "analog", 1, 0, 5),
    (16, 16, "products", "rate", 1, 0.7, 8),
    (32, 8, "products", "analog", 3, 0, 1),
    (4, 16, "products", "rate", 3, 0, 8),
    (16, 8, "paper", "analog", 1, 0.7, 16),
    (32, 16, "paper", "rate", 1, 0, 3),
    (16, 8, "products", "rate", 40, 0, 7),
    (32, 8, "paper", "rate", 3, 0.7, 5),
]
EVERY_TIME = (
    "nn.TransformerEncoder", "nn.TransformerEncoder-sequence-first", "nn.TransformerDecoder",
    "nn.MultiheadAttention", "mlp", "cnn", "separable-cnn", "u-net", "mlp-mixer", "qwen2", "qwen3", "mistral",
    "gemma2", "gemma3", "phi3", "opt", "gptj", "falcon", "bloom", "modernbert", "mpnet", "deberta-v2", "albert",
    "t5-encoder", "clip", "siglip-vision", "dinov3", "swinv2", "segformer", "mobilevit", "resnet", "convnext",
    "whisper", "wav2vec2", "t5", "bart", "mixtral", "mamba", "fnet", "xlnet", "detr", "funnel",
)  # fmt: skip
NAMES = list(families.FAMILIES) if os.environ.get("SPIKEZIP_FAMILIES") == "all" else EVERY_TIME
# Samples of these meet one another, so that time cannot be folded into the batch; the reason is part of the message.
STEP_BY_STEP = {"clip": "every sample meets every other", "xlnet": "samples lie within a dimension"}
# A family that torch.export follows, but whose shapes depend on values; or that draws random numbers.
REFUSED = {"xmod", "vjepa2", "informer", "dac"}
# On the way to equilibrium these have no value: 0/0 before anything has fired, acos of more than 1. A run says so.
NO_NUMBER = {"aimv2", "yoso"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in REFUSED | NO_NUMBER])
def test_engines_agree_and_end_in_the_quantized_network(name: str) -> None:
    check(
        families.build(name), families.FAMILIES[name].batch(1), SETTINGS[list(families.FAMILIES).index(name) % 8], name
    )


@pytest.mark.parametrize("name", list(tiny_models.ALL))
def test_architectures_of_the_first_edition(name: str) -> None:
    model = tiny_models.make(name)
    check(model, tiny_models.inputs(model), SETTINGS[list(tiny_models.ALL).index(name) % len(SETTINGS)], name)


def check(model: Any, batch: dict[str, torch.Tensor], setting: tuple[Any, ...], name: str) -> None:
    levels, bits, placement, coding, max_spike, stagger, chunk = setting
    network = frozen(model, batch, QuantConfig(levels=levels, weight_bits=bits, placement=placement))
    _, codes = quantized(network, batch)
    drive = {"steps": "equilibrium", "coding": coding, "max_spike": max_spike, "stagger": stagger}
    judge = trains(network, batch, "spike", **drive)
    assert judge.settled
    for site, expected in codes.items():
        assert torch.equal(judge.tracers[site].to(expected.dtype), expected), site
    layout = batch_layout(network.program)
    for engine in [e for e in ENGINES if e != "spike"]:
        if layout.mixed and engine == "folded":
            with pytest.raises(ConfigError, match="samples are not independent"):
                trains(network, batch, engine, **drive)
            assert STEP_BY_STEP.get(name, "") in layout.mixed
            continue
        assert_equal_runs(trains(network, batch, engine, chunk=chunk, **drive), judge)
    _check_samples(network, batch, codes, bool(layout.mixed))


def _check_samples(network: Any, batch: dict[str, torch.Tensor], codes: dict[str, torch.Tensor], mixed: bool) -> None:
    """A sample has the codes that it has in company; threads share a batch without changing it."""
    if mixed or network.program.batch is None or any(x.shape[:1] != (3,) for x in batch.values()):
        return
    _, alone = quantized(network, one_sample(batch, 1))
    layout = batch_layout(network.program)
    for site, whole in codes.items():
        prefix = layout.prefix[site]
        if prefix == 1:
            assert torch.equal(whole.reshape(3, -1)[1], alone[site].reshape(-1)), site
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        shared = run(network, batch, Drive(engine="folded", steps=7))
        torch.set_num_threads(1)
        assert torch.equal(shared.logits_per_step, run(network, batch, Drive(engine="folded", steps=7)).logits_per_step)
    finally:
        torch.set_num_threads(threads)


def test_auto_says_why_it_goes_step_by_step() -> None:
    network = frozen(families.build("clip"), families.FAMILIES["clip"].batch(1))
    layout = batch_layout(network.program)
    name, why = resolve_engine(network, layout, "auto")
    assert name == "spike"
    assert "every sample meets every other" in why
    found = run(network, families.FAMILIES["clip"].batch(1), Drive(steps=3))
    assert found.engine == "spike"
    assert found.why_engine == why
