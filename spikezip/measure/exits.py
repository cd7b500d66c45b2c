"""Confidence exit: a sample leaves once its answer is settled, and is not counted from then on."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikezip.engines import Drive, SpikingNetwork
from spikezip.engines.engine import Engine
from spikezip.engines.loop import check_finite, chunks, make_engine, primary, step_limit
from spikezip.errors import ConfigError
from spikezip.measure.answers import Head
from spikezip.measure.exit_rule import ExitRule
from spikezip.program.batch import Batch


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
    snn: SpikingNetwork,
    batch: Batch,
    rule: ExitRule,
    engine: str = "auto",
    *,
    chunk: int | None = None,
    max_steps: int | None = None,
) -> Exits:
    """Run a batch until every sample has left by the rule, or is at equilibrium.

    What is returned for a sample is what it would be alone. The folded and the event engine look after each chunk of
    steps, the spike engine after each step; `chunk` sets another number. A sample that was done within a chunk is
    counted up to its own step. The batch goes on until its last sample has left.

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
    chunk = 1 if chunk is None and engine == "spike" else chunk
    drive = Drive(
        engine, "equilibrium", rule.coding, rule.max_spike, rule.stagger, chunk=chunk, max_steps=max_steps
    )  # fmt: skip
    driver, _ = make_engine(snn.frozen(), snn.prepare(batch), drive)
    limit = step_limit(driver)
    inside = torch.ones(driver.batch, dtype=torch.bool, device=snn.device)  # the samples that have not left yet
    streak, steps = torch.zeros_like(inside, dtype=torch.int64), torch.zeros_like(inside, dtype=torch.int64)
    confident = torch.zeros_like(inside)
    logits: Tensor | None = None
    counts: list[Tensor] = []  # [n, sites, B] of each chunk
    for n in chunks(limit, driver):
        before, advances = driver.state.done, _advances(driver)
        outputs = check_finite(torch.cat([primary(output, driver) for output in driver.advance(n)]))  # [n, B, classes]
        at, streak = rule.follow(rule.met(outputs), streak, before)
        last_spike = driver.last_spike()
        end = torch.where(driver.at_equilibrium(last_spike), (last_spike + 1).clamp(min=driver.free_from), 0)
        end = torch.where((end == 0) & (driver.state.done >= limit), limit, end)
        early = (at > 0) & ((end == 0) | (at <= end))
        left = torch.where(early, at, end)  # 0 for those that stay
        gone = (left > 0) & inside
        logits = torch.zeros_like(outputs[0]) if logits is None else logits
        logits[gone] = outputs[left[gone] - 1 - before, gone.nonzero()[:, 0]]
        steps[gone], confident[gone] = left[gone], early[gone]
        numbers = torch.arange(before + 1, driver.state.done + 1, device=snn.device)[:, None]
        counted = inside & (~gone | (numbers <= left))
        fired = torch.stack([torch.cat(pieces[advances:]) for pieces in driver.recording.counts.values()], dim=1)
        counts.append((fired * counted[:, None]).to(torch.int64))
        inside &= ~gone
        if not bool(inside.any()):
            break
    assert logits is not None
    over_time = torch.cat(counts)[: int(steps.max())]
    spike_counts = dict(zip(driver.recording.counts, over_time.unbind(dim=1), strict=True))
    neurons = {name: driver.neurons(site) for name, site in driver.program.sites.items()}
    return Exits(logits, steps, confident, spike_counts, neurons)


def _advances(driver: Engine) -> int:
    return max((len(pieces) for pieces in driver.recording.counts.values()), default=0)


def check_head(snn: SpikingNetwork) -> Head:
    """A network that gives one answer per sample, or an error."""
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"a confidence exit takes what spikezip.convert returns, not {type(snn).__name__}")
    head = Head.of(snn)
    if head.classes is None or head.per_token:
        raise ConfigError(
            f"a confidence exit needs one choice per sample, as a classifier makes; {type(snn).__name__} gives "
            + ("an answer for each token" if head.per_token else "no choice among classes")
        )
    return head
