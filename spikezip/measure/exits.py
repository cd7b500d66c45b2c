"""Confidence exit: a sample leaves the batch once its answer is settled, and costs nothing from then on."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikezip.batches import Batch
from spikezip.errors import ConfigError
from spikezip.execution import executing
from spikezip.measure.answers import Head
from spikezip.measure.exit_rule import ExitRule
from spikezip.simulate import SpikingModel
from spikezip.simulate.drive import check_finite, chunks, start, step_limit
from spikezip.simulate.engine import rows_of
from spikezip.simulate.outputs import primary


@dataclass(frozen=True)
class Exits:
    """A batch whose samples left one by one.

    Attributes:
        logits: `[B, classes]`, each sample's when it left; `answers`: the largest of them.
        steps: `[B]`, the step at which it left.
        confident: `[B]`, whether by the rule; the others had settled, or the run ended.
        spike_counts: site → `[T, B]`, spikes of each step and sample up to its exit, zero after it.
        neurons: site → neurons per sample.
    """

    logits: Tensor
    steps: Tensor
    confident: Tensor
    spike_counts: dict[str, Tensor] = field(repr=False)
    neurons: dict[str, int] = field(repr=False)

    @property
    def answers(self) -> Tensor:
        return self.logits.argmax(dim=-1)

    @property
    def spikes(self) -> Tensor:
        """Spikes of each sample up to its exit, `[B]`."""
        return torch.stack([counts.sum(dim=0) for counts in self.spike_counts.values()]).sum(dim=0)

    @property
    def spikes_per_neuron(self) -> float:
        return float(self.spikes.sum()) / (sum(self.neurons.values()) * len(self.steps))


@torch.no_grad()
def simulate_until_confident(
    snn: SpikingModel,
    batch: Batch,
    rule: ExitRule,
    engine: str = "auto",
    *,
    chunk: int | None = None,
    max_steps: int | None = None,
) -> Exits:
    """Run a batch until every sample has left by the rule, or has settled.

    Samples that are done leave the batch. The others do not notice: with weights on the grid each bit is as without.
    The folded and the event engine look after each chunk of steps, the spike engine after each step; `chunk` sets
    another number. (When samples leave, the event engine writes its pass down again, once for each size of batch.)
    A sample that was done within a chunk is counted up to its own step.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), torch.randn(2, 3, 32, 32)))
        >>> exits = simulate_until_confident(snn, torch.randn(2, 3, 32, 32), ExitRule("margin", 0.0, patience=2))
        >>> exits.steps, exits.confident
        (tensor([2, 2]), tensor([True, True]))
    """
    check_head(snn)
    prepared, driver = start(snn, batch, engine, rule.coding, rule.max_spike, rule.stagger)
    limit = step_limit(snn, "equilibrium", max_steps, driver.settings)
    inputs, device = prepared.inputs, snn.device
    here = torch.arange(prepared.size, device=device)  # the samples in the batch, by their number
    inside = torch.ones_like(here, dtype=torch.bool)  # and which of them have not left yet
    streak = torch.zeros_like(here)
    steps, confident = torch.zeros_like(here), torch.zeros_like(inside)
    logits: Tensor | None = None
    counts: list[Tensor] = []  # [n, sites, B] of each chunk
    neurons: dict[str, int] = {}
    with executing(driver):
        for n in chunks(limit, 1 if chunk is None and engine == "spike" else chunk, driver):
            before, advances = driver.done, _advances(driver)
            outputs = check_finite(primary(driver.advance(snn.network, inputs, n)))  # [n, b, classes]
            at, streak = rule.follow(rule.met(outputs), streak, before)
            last_spike = driver.last_spike()
            end = torch.where(driver.settled(last_spike), (last_spike + 1).clamp(min=driver.free_from), 0)
            end = torch.where((end == 0) & (driver.done >= limit), limit, end)
            early = (at > 0) & ((end == 0) | (at <= end))
            left = torch.where(early, at, end)  # 0 for those that stay
            gone = (left > 0) & inside

            logits = outputs.new_zeros(prepared.size, outputs.shape[-1]) if logits is None else logits
            logits[here[gone]] = outputs[left[gone] - 1 - before, gone.nonzero()[:, 0]]
            steps[here[gone]], confident[here[gone]] = left[gone], early[gone]
            numbers = torch.arange(before + 1, driver.done + 1, device=device)[:, None]
            counted = inside & (~gone | (numbers <= left))
            fired = torch.stack([torch.cat(chunks[advances:]) for chunks in driver.spike_counts.values()], dim=1)
            whole = torch.zeros(n, fired.shape[1], prepared.size, dtype=torch.int64, device=device)
            whole[:, :, here[inside]] = (fired * counted[:, None])[:, :, inside].to(torch.int64)
            counts.append(whole)
            neurons = neurons or {site: codes.numel() // len(here) for site, codes in driver.tracers.items()}
            inside &= ~gone
            if not bool(inside.any()):
                break
            staying = _staying(inside)
            if len(staying) < len(here):
                inputs = {name: _rows(value, staying, len(here)) for name, value in inputs.items()}
                here, inside, streak = here[staying], inside[staying], streak[staying]
                driver.select(staying)
    assert logits is not None
    over_time = torch.cat(counts)[: int(steps.max())]
    spike_counts = dict(zip(driver.spike_counts, over_time.unbind(dim=1), strict=True))
    return Exits(logits, steps, confident, spike_counts, neurons)


def _advances(driver: Any) -> int:
    return max((len(chunks) for chunks in driver.spike_counts.values()), default=0)


def _staying(inside: Tensor) -> Tensor:
    """The rows to go on with: of samples that have not left, on a GPU filled up to a power of two with others.

    There few sizes of batch are better than small ones: for each, a chunk of steps is recorded once.

    Example:
        >>> _staying(torch.tensor([True, False, True, True]))
        tensor([0, 2, 3])
    """
    rows = inside.nonzero()[:, 0]
    if not inside.is_cuda:
        return rows
    size = min(1 << (len(rows) - 1).bit_length(), len(inside))
    return torch.cat([rows, (~inside).nonzero()[: size - len(rows), 0]])


def _rows(value: Any, samples: Tensor, batch: int) -> Any:
    """An input of the samples that stay; what the batch shares stays as it is."""
    shared = not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != batch
    return value if shared else rows_of(value, samples, batch)


def check_head(snn: SpikingModel) -> Head:
    """A network that gives one answer per sample, or an error."""
    if not isinstance(snn, SpikingModel):
        raise ConfigError(f"a confidence exit takes what spikezip.convert returns, not {type(snn).__name__}")
    head = Head.of(snn)
    if head.classes is None or head.per_token:
        raise ConfigError(
            f"a confidence exit needs one choice per sample, as a classifier makes; {type(snn).__name__} gives "
            + ("an answer for each token" if head.per_token else "no choice among classes")
        )
    return head
