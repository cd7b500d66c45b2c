"""Attention of the folded engine in one piece: what reaches the memory is codes in, codes out."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikezip.ops import grid, kernels, neuron
from spikezip.spiking.attention import Attention, masked_softmax
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.unscaled import Unscaled

if TYPE_CHECKING:
    from spikezip.simulate.folded import FoldedEngine


def attend(
    engine: "FoldedEngine", attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor] | None:
    """What `Attention.forward` returns, for codes `[n·B, heads, tokens, d]`; None where the kernel cannot do it."""
    p, o, steps = attention.p, attention.o, engine.steps
    masks = _masks(mask, len(q), steps)
    if not _can(engine, attention, q, k, v) or masks is None:
        return None
    from spikezip.ops.sesa import triton  # only where it is used: importing the library must not need it

    def by_token(x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(0, (steps, -1))

    turned = by_token(q), by_token(k), by_token(v)
    if not triton.fits(turned[0]):
        return None
    _, batch, queries, heads, width = turned[0].shape
    nothing = torch.empty((), device=q.device)

    def layer(site: Neuron, *shape: int) -> triton.Layer:
        before = engine.tracer(site, nothing.expand(shape))
        return triton.Layer(before, site.step_size, site.lo, site.hi, engine.held(site))

    p_layer, o_layer = layer(p, batch, heads, queries, k.shape[2]), layer(o, batch, queries, heads, width)
    settings = engine.settings
    score_factor = attention.factor(attention.q, attention.k, scaling)
    mix_factor = attention.factor(p, attention.v, 1.0)
    seen = masks if len(masks) else None
    factors, drive = (score_factor, mix_factor), (settings.max_spike, settings.batch)
    fired = [engine.moved(site.name) for site in (attention.q, attention.k, attention.v)]
    moved = [counts for counts in fired if counts is not None]  # of all three, or of none
    out, p_last, *counts = triton.attention(*turned, seen, p_layer, o_layer, *factors, *drive, engine.in_place, moved)
    engine.move_on(p, p_last, own=True)
    engine.move_on(o, out[-1])
    for site, spikes in zip((p, o), counts, strict=True):
        engine.spike_counts[site.name].append(spikes)

    def probabilities() -> Tensor:
        """The codes of the probabilities at every step, once more: the kernel does not keep them."""
        groups = heads // k.shape[1]
        keys = k.repeat_interleave(groups, dim=1) if groups > 1 else k
        scores = grid.matmul(q, keys.transpose(2, 3), torch.float32, 127) * score_factor
        rows = masked_softmax(scores, mask).view(steps, -1)
        tracer, held = p_layer.tracer.reshape(-1), p_layer.held
        limits = (p.step_size, p.lo, p.hi, settings.max_spike, settings.batch)
        free = neuron.walk(rows[held:], tracer, *limits)[0] if held < steps else tracer[:0].view(0, -1)
        return torch.cat([tracer.expand(held, -1), free.view(steps - held, -1)]).view(scores.shape)

    weights = Unscaled.later((len(q), heads, queries, k.shape[2]), probabilities, p.step_size, p)
    return Unscaled.of(out.flatten(0, 1), o.step_size, None, o), weights


def _can(engine: "FoldedEngine", attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> bool:
    p, o = attention.p, attention.o
    if not kernels.on_gpu(q) or not kernels.moves_tiles(q.device):
        return False
    if not all(x.dtype == torch.int8 for x in (q, k, v)) or engine.wants_spikes(p) or engine.wants_spikes(o):
        return False
    bare = all(not s.step_size.ndim and engine.code_dtype(s, q) == torch.int8 for s in (p, o))
    sums = (
        attention.accumulator("qk", q.shape[-1], attention.q, attention.k),
        attention.accumulator("pv", k.shape[2], p, attention.v),
    )
    # The kernel keeps probabilities' codes in bytes without a sign.
    return bare and p.lo == 0 and p.scale.dtype == torch.float32 and all(dtype == torch.float32 for dtype in sums)


def _masks(mask: Tensor | None, rows: int, steps: int) -> Tensor | None:
    """Masks `[samples, queries, keys]` of one step, none without a mask; None if heads differ in theirs."""
    if mask is None:
        return torch.empty(0)
    if mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[0] not in (1, rows) or mask.dtype != torch.float32:
        return None
    return mask[: max(mask.shape[0] // steps, 1), 0]
