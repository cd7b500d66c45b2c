"""Loops compiled for the CPU against their reference, bit for bit; and the engine with and without them."""

import sys
from typing import Any

import pytest
import torch

import spikezip
from spikezip.errors import SpikezipError
from spikezip.ops import grid, neuron
from spikezip.ops.compiled import jit, share
from spikezip.ops.neuron import fast, reference
from spikezip.ops.rounding import reference as rounding

pytest.importorskip("numba")
from spikezip.ops.grid import compiled as compiled_grid


def sums(shape: tuple[int, int], scale: torch.Tensor, lo: int, hi: int) -> torch.Tensor:
    """Random values, many of them the float32 neighbours of a boundary s·(k + 1/2), some far outside."""
    u = torch.randn(shape) * scale * (hi - lo) * 0.4
    k = torch.randint(lo - 2, hi + 3, shape)
    tie = (scale.double() * (k + 0.5)).float()
    tie = torch.where(torch.rand(shape) < 0.5, tie, torch.nextafter(tie, torch.tensor(float("inf"))))
    u = torch.where(torch.rand(shape) < 0.01, tie, u)
    return torch.where(torch.rand(shape) < 0.001, torch.tensor(float("-inf")), u)


CASES = [  # steps, samples, neurons per sample, channels, lo, hi, largest spike
    (1, 1, 1, 1, -4, 3, 1),
    (3, 2, 37, 1, 0, 1, 1),
    (3, 2, 2053, 1, 0, 1, 1),
    (5, 3, 1024, 1, -16, 15, 2),
    (4, 1, 1025, 1, -128, 127, 40),
    (7, 2, 5000, 1, 0, 31, 10**6),
    (4, 2, 3 * 700, 700, -16, 15, 1),
    (2, 3, 5 * 1536, 1536, 0, 31, 1),
    (3, 2, 4 * 3, 3, -2, 1, 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_walk_equals_reference(case: tuple[int, ...]) -> None:
    steps, samples, each, channels, lo, hi, m = case
    torch.manual_seed(each)
    scale = torch.rand(channels) * 0.3 + 0.01 if channels > 1 else torch.tensor(0.0371)
    wide = scale.repeat(samples * each // channels) if channels > 1 else scale
    u = sums((steps, samples * each), wide, lo, hi)
    tracer = torch.randint(lo, hi + 1, (samples * each,))
    before = u.clone()
    found = neuron.walk(u, neuron.Neurons(tracer.to(torch.int8), scale, lo, hi, m, samples))
    expected = reference.scan(rounding.code(u, wide, lo, hi), tracer.float(), m)
    assert found[0].dtype == torch.int8
    assert torch.equal(found[0].float(), expected)
    spikes = expected.diff(dim=0, prepend=tracer.float()[None])
    assert torch.equal(found[1], spikes.abs().view(steps, samples, each).sum(2).long())
    assert torch.equal(u, before)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("has_numba", [True, False])
def test_walk_takes_int8_with_and_without_numba(
    channels: int, has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "numba_is_here", lambda: has_numba)
    scale = torch.rand(4) + 0.1 if channels > 1 else torch.tensor(0.3)
    wide = scale.repeat(6) if channels > 1 else scale
    u, tracer = torch.randn(5, 24) * 3, torch.randint(-4, 4, (24,))
    tracers, counts = neuron.walk(u, neuron.Neurons(tracer.to(torch.int8), scale, -4, 3, 1, 2))
    expected = reference.scan(rounding.code(u, wide, -4, 3), tracer.float(), 1)
    assert tracers.dtype == torch.int8
    assert torch.equal(tracers.float(), expected)
    assert int(counts.sum()) == int(expected.diff(dim=0, prepend=tracer.float()[None]).abs().sum())


@pytest.mark.parametrize("has_numba", [True, False])
@pytest.mark.parametrize("channels", [1, 4])
def test_a_nan_is_no_code(channels: int, has_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "numba_is_here", lambda: has_numba)
    u = torch.randn(3, 8)
    u[1, 5] = float("nan")
    scale = torch.ones(4) if channels > 1 else torch.tensor(1.0)
    with pytest.raises(SpikezipError, match="not a number"):
        neuron.walk(u, neuron.Neurons(torch.zeros(8, dtype=torch.int8), scale, -4, 3, 1, 2))


def test_counts_that_are_nan_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how the neurons of a GPU say that a NaN has reached them."""
    import transformers

    from spikezip.engines.folded import FoldedEngine

    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    images = torch.randn(2, 3, 8, 8)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(transformers.ViTModel(config)), images))
    walk = FoldedEngine._walk

    def spoiled(self: Any, *args: Any) -> Any:
        tracers, counts = walk(self, *args)
        return tracers, counts * float("nan")

    monkeypatch.setattr(FoldedEngine, "_walk", spoiled)
    with pytest.raises(SpikezipError, match="not a number"):
        spikezip.simulate(snn, images, 3, "folded")


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (65, 256), (4, 5, 33)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_scale_bias_equals_torch(shape: tuple[int, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    total = torch.randint(-(2**24) + 1, 2**24, shape, dtype=torch.int32)
    total.view(-1)[0] = 0
    scale, bias = torch.randn(shape[-1]) * 1e-3, torch.randn(shape[-1]) * 1e3 if has_bias else None
    expected = total.float() * scale
    expected = expected if bias is None else expected + bias
    found = compiled_grid.scale_bias(total, scale, bias)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())
    assert torch.equal(grid.scale_bias(total, scale, bias), expected)


def test_without_a_folder_to_write_to_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    njit, asked = numba.njit, []

    def refuses(*args: Any, **options: Any) -> Any:
        asked.append(options.get("cache", False))
        if asked[-1]:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args, **options)

    monkeypatch.setattr(numba, "njit", refuses)
    assert jit(lambda x: x + 1)(2) == 3
    assert asked == [True, False]


def test_work_is_shared_and_its_errors_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    seen: list[tuple[int, int]] = []
    share(lambda first, last: seen.append((first, last)), pieces=10, values=10**9)
    assert sorted(seen) == [(0, 2), (2, 5), (5, 7), (7, 10)]

    def fails(first: int, last: int) -> Any:
        raise ValueError(f"piece {last}")

    with pytest.raises(ValueError, match="piece"):
        share(fails, pieces=10, values=10**9)


@pytest.mark.parametrize("has_numba", [True, False])
@pytest.mark.parametrize("settings", [{}, {"stagger": 0.4}, {"coding": "rate", "max_spike": 3}, {"chunk": 5}], ids=str)
def test_both_engines_have_the_same_spikes(
    settings: dict[str, Any], has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    for module in ("spikezip.ops.neuron.fast", "spikezip.ops.grid.fast", "spikezip.engines.loop"):
        monkeypatch.setattr(sys.modules[module], "numba_is_here", lambda: has_numba)
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, image_size=32, patch_size=8,
        hidden_act="relu", num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    channels = spikezip.SiteConfig(per_channel=True)
    quant = spikezip.QuantConfig(levels=16, sites={"*layernorm*": channels, "*.activation_fn": channels})
    images = torch.randn(5, 3, 32, 32)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, quant), images))
    record = list(snn.neurons)
    slow = spikezip.simulate(snn, images, 40, "spike", record=record, **{**settings, "chunk": None})
    quick = spikezip.simulate(snn, images, 40, "folded", record=record, **settings)
    assert slow.spikes_per_neuron > 1
    for site in record:
        assert torch.equal(slow.trains[site], quick.trains[site]), site
        assert torch.equal(slow.tracers[site], quick.tracers[site]), site
        assert torch.equal(slow.spike_counts[site], quick.spike_counts[site]), site
    assert torch.equal(slow.logits_per_step, quick.logits_per_step)


def test_what_comes_out_is_plain() -> None:
    """A batch large enough for int8 products in the head, and attention maps, which few ask for."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        hidden_act="relu", num_labels=8, attn_implementation="eager", output_attentions=True, output_hidden_states=True,
    )  # fmt: skip
    images = torch.randn(70, 3, 8, 8)
    qann = spikezip.calibrate(spikezip.quantize(transformers.ViTForImageClassification(config)), images).eval()
    snn = spikezip.convert(qann)
    with torch.no_grad():
        expected, found = qann(images), snn(pixel_values=images)
    assert type(found.logits) is torch.Tensor
    assert torch.equal(found.logits, expected.logits)
    assert found.logits.numpy().shape == (70, 8)
    for name in ("attentions", "hidden_states"):
        assert len(found[name]) > 0
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert type(ours) is torch.Tensor
            assert torch.equal(ours, theirs)
    assert type(spikezip.simulate(snn, images, 4).logits_per_step) is torch.Tensor
