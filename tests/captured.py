"""Networks of the new core for tests: from a float model to a frozen program, and engines side by side."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.engines.engine import Drive, Run
from spikezip.engines.loop import run
from spikezip.program.freeze import Frozen
from spikezip.quant.calibration import calibrate
from spikezip.quant.config import QuantConfig
from spikezip.quant.network import QuantizedNetwork, quantize


def quantized_network(
    model: nn.Module, batch: Mapping[str, Tensor], config: QuantConfig | None = None
) -> QuantizedNetwork:
    """A calibrated quantized network of a model."""
    return calibrate(quantize(model, config, example=batch), batch, "quick").eval()


def frozen(model: nn.Module, batch: Mapping[str, Tensor], config: QuantConfig | None = None) -> Frozen:
    return quantized_network(model, batch, config).frozen()


def trains(network: Frozen, batch: Mapping[str, Tensor], engine: str, **settings: Any) -> Run:
    """A run with the spikes of all sites recorded."""
    drive = Drive(engine=engine, record=tuple(network.program.sites), **settings)
    return run(network, batch, drive)


def assert_equal_runs(found: Run, expected: Run) -> None:
    """Equal spikes at every site and step, equal outputs, equal ends."""
    assert found.t_eq == expected.t_eq
    assert torch.equal(found.logits_per_step, expected.logits_per_step)
    for site in expected.tracers:
        assert torch.equal(found.trains[site], expected.trains[site]), site
        assert torch.equal(found.spike_counts[site], expected.spike_counts[site]), site
        assert torch.equal(found.tracers[site], expected.tracers[site]), site


def one_sample(batch: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: x[index : index + 1] for name, x in batch.items()}
