"""Blocks that are left out in training: by hand, in the mean, and for a quantized network."""

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import toys

from spikezip.errors import ConfigError
from spikezip.measure.agreement import agreement
from spikezip.measure.exactness import verify
from spikezip.models.networks import quantize
from spikezip.program.dropout import residual_sums, with_drop_path
from spikezip.quant.calibration import calibrate
from spikezip.training.depth import POST_NORM, blocks, dropping_paths

PRE_NORM = [
    n
    for n in tiny_models.HEADS
    if n.split("For")[0].lower() not in ("bert", "roberta", "distilbert", "electra", "xlmroberta")
]
THE_REST = [n for n in tiny_models.HEADS if n not in PRE_NORM]


def hidden(model: Any, batch: dict[str, torch.Tensor], block: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What went into a block, and what came out of it, after every hook that is on it now."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(module: Any, args: Any, output: Any) -> None:
        seen.append((args[0].clone(), (output[0] if isinstance(output, tuple) else output).clone()))

    handle = model.get_submodule(block).register_forward_hook(look)
    with torch.no_grad():
        model(**batch)
    handle.remove()
    return seen


@pytest.mark.parametrize("name", PRE_NORM)
def test_each_sample_keeps_a_block_or_leaves_it_out(name: str) -> None:
    model = tiny_models.make(name)
    last = blocks(model)[-1]
    batch = {key: value[:1].repeat(64, *[1] * (value.ndim - 1)) for key, value in tiny_models.inputs(model).items()}
    [(_, whole)] = hidden(model, batch, last)
    with dropping_paths(model, 0.5):
        [(_, same)] = hidden(model, batch, last)
        assert torch.equal(same, whole)  # evaluation leaves nothing out
        model.get_submodule(last).train()  # this block only: what reaches it does not vary
        for module in model.get_submodule(last).children():
            module.eval()
        [(before, after)] = hidden(model, batch, last)
        model.eval()
    left_out = (after == before).flatten(1).all(1)
    assert 10 < int(left_out.sum()) < 54  # of 64 with probability ½: beyond five deviations
    kept = before + 2 * (whole - before)  # 1 / (1 − ½)
    assert torch.equal(after[~left_out], kept[~left_out])
    [(_, gone)] = hidden(model.train().eval(), batch, last)
    assert torch.equal(gone, whole)  # the hooks are gone


def test_the_probability_rises_with_depth() -> None:
    model = toys.vit(num_hidden_layers=3, num_attention_heads=1)
    batch = {"pixel_values": torch.randn(1, 3, 8, 8).repeat(2000, 1, 1, 1)}
    shares = []
    with dropping_paths(model.train(), 0.6):
        for block in blocks(model):
            [(before, after)] = hidden(model, batch, block)
            shares.append(float((after == before).flatten(1).all(1).float().mean()))
    assert shares[0] == 0.0
    assert shares[1] == pytest.approx(0.3, abs=0.05)  # five deviations of 2,000 throws
    assert shares[2] == pytest.approx(0.6, abs=0.05)


def test_the_mean_is_the_whole() -> None:
    model = toys.vit(num_hidden_layers=2)
    batch = {"pixel_values": torch.randn(1, 3, 8, 8).repeat(4000, 1, 1, 1)}
    last = blocks(model)[-1]
    [(before, whole)] = hidden(model.eval(), batch, last)
    with dropping_paths(model.train(), 0.4):
        [(_, after)] = hidden(model, batch, last)
    branch = float((whole - before).abs().max())
    # The mean of 4,000 throws deviates by √(p / (1 − p) / 4000) = 1.3 % of the branch; five deviations are allowed.
    assert float((after.mean(0) - whole[0]).abs().max()) < 0.065 * branch
    assert float((before - whole).mean(0).abs().max()) > 0.5 * branch


@pytest.mark.parametrize("name", THE_REST)
def test_blocks_that_end_in_a_norm_are_refused(name: str) -> None:
    model = tiny_models.make(name)
    assert model.config.model_type in POST_NORM
    with (
        pytest.raises(ConfigError, match=r"drop_path=0\.1: .* normalises behind its residual sums"),
        dropping_paths(model, 0.1),
    ):
        pass
    with dropping_paths(model, 0.0):
        pass


def test_hooks_go_when_a_run_breaks() -> None:
    model = toys.vit(num_hidden_layers=2)
    with pytest.raises(toys.StopError), dropping_paths(model, 0.5):
        raise toys.StopError
    assert not any(module._forward_hooks for module in model.modules())


def test_a_quantized_network_trains_with_it(tmp_path: Path) -> None:
    data = toys.images(train=128)
    stages: dict[str, Any] = {
        "quantize": {"batches": 1},
        "qat": toys.stage(epochs=2, drop_path=0.4),
        "convert": True,
        "verify": {"samples": 8},
    }
    result = toys.run(toys.vit(num_hidden_layers=2, hidden_act="relu"), stages, data, tmp_path / "with")
    assert result.metrics["qat"]["grid_agreement"] == 1.0
    assert result.metrics["snn"]["exact"]
    stages["qat"] = toys.stage(epochs=2)
    without = toys.run(toys.vit(num_hidden_layers=2, hidden_act="relu"), stages, data, tmp_path / "without")
    assert not toys.same_weights(result.qann, without.qann)
    assert not any(module.training for module in result.qann.modules())
    pixels = torch.randn(4, 3, 8, 8)
    with dropping_paths(result.qann, 0.9):
        assert agreement(result.qann, pixels).share == 1.0
    assert verify(result.qann, result.snn, [{"pixel_values": pixels}]).exact


@pytest.fixture(scope="module")
def deep() -> Any:
    """A quantized network of three blocks: six residual sums."""
    return calibrate(quantize(toys.vit(num_hidden_layers=3, num_attention_heads=1)), torch.randn(4, 3, 8, 8))


def throws(qann: Any, rate: float, samples: int) -> list[tuple[torch.Tensor, ...]]:
    """Of every residual sum in a training pass over copies of a sample: what it adds, the whole of that, the stream."""
    seen: dict[str, Any] = {}
    sums = dict(residual_sums(qann.program))
    with dropping_paths(qann, rate), torch.no_grad():
        qann.watch = lambda node, values: seen.update({node.name: values[node.name]})
        qann.train()(pixel_values=torch.randn(1, 3, 8, 8).repeat(samples, 1, 1, 1))
        reads = {name: qann.program[name].reads for name in sums}
    qann.watch = None
    qann.eval()
    found = []
    for name, branch in sums.items():
        own, stream = sorted(reads[name], key=lambda read: read not in (branch, f"{name}.branch"))
        found.append((seen[own], seen[branch], seen[name], seen[stream]))
    return found


def test_each_sample_keeps_a_branch_or_leaves_it_out(deep: Any) -> None:
    """Per sample and branch: nothing, or all of it by 1/(1 − p). The probability rises from the first to the last."""
    seen = throws(deep, 0.6, 2000)
    assert len(seen) == 6
    for number, (added, whole, total, stream) in enumerate(seen):
        p = 0.6 * number / 5
        left_out = (added == 0).flatten(1).all(1)
        assert float(left_out.float().mean()) == pytest.approx(p, abs=0.055)  # five deviations of 2,000 throws
        assert torch.allclose(added[~left_out], whole[~left_out] / (1 - p), rtol=1e-6)  # one product, rounded
        assert torch.equal(total[left_out], stream[left_out])


def test_evaluation_leaves_nothing_out(deep: Any) -> None:
    pixels = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        whole = deep(pixel_values=pixels).logits
        with dropping_paths(deep, 0.9):
            assert torch.equal(deep(pixel_values=pixels).logits, whole)
            assert agreement(deep, pixels).share == 1.0
            assert not torch.equal(deep.train()(pixel_values=pixels).logits, whole)
        deep.eval()
        assert not any("branch" in node.name for node in deep.program.nodes)


def test_a_network_without_residual_sums_is_refused() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU(), torch.nn.Linear(2, 3))
    program = quantize(layers, example=torch.randn(2, 4)).program
    with pytest.raises(ConfigError, match="the network has no residual sums"):
        with_drop_path(program, 0.1)


@pytest.mark.parametrize("name", PRE_NORM)
def test_residual_sums_are_found(name: str) -> None:
    """Two in each block: behind attention and behind the MLP."""
    model = tiny_models.make(name)
    sums = dict(residual_sums(quantize(model).program))
    assert len(sums) == 2 * len(blocks(model))
