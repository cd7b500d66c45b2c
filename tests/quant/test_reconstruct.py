"""effort="thorough": blocks are fitted to the float network's, on inputs that are quantized already."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import spikezip
from spikezip import QuantConfig
from spikezip.quant import reconstruct as fitting
from spikezip.quant.learn import learn
from spikezip.quant.plain import evaluate_plain
from spikezip.quant.reconstruct import fitted_blocks, reconstruct


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "STEPS", 20)


def vit(**more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=5, **more,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def images(count: int = 64) -> list[Tensor]:
    return list(torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1)).split(8))


def calibrated(model: Any, effort: str, batches: list[Tensor], levels: int = 6) -> Any:
    qann = spikezip.quantize(model, QuantConfig(levels=levels, placement="products")).eval()
    return spikezip.calibrate(qann, batches, effort)


def distance(qann: Any, model: Any, x: Tensor) -> float:
    with torch.no_grad():
        return float((qann(pixel_values=x).logits - model(pixel_values=x).logits).norm())


def test_a_fitted_network_is_nearer_to_the_float_one_on_other_data_and_exact() -> None:
    model, other = vit(), torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    plain, fitted = (calibrated(model, effort, images()) for effort in ("default", "thorough"))
    assert distance(fitted, model, other) < 0.95 * distance(plain, model, other)
    certificate = spikezip.verify(fitted, spikezip.convert(fitted), [other[:8]])
    assert certificate.exact


def watched(qann: Any, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Tensor], list[Any]]:
    """A reconstruction, and of its first batch what every block was fitted to and what entered it."""
    targets, entered = [], []
    fit = fitting._Reconstruction._fit

    def look(self: Any, block: Any) -> None:
        targets.append(self.batches[0].target)
        entered.append(dict(self.batches[0].quantized))
        fit(self, block)

    monkeypatch.setattr(fitting._Reconstruction, "_fit", look)
    run = fitting._Reconstruction(qann, [qann.prepare(x) for x in batches], 0, lambda: None)
    run.run()
    return run, targets, entered


def test_what_a_block_is_fitted_to_is_the_float_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets are the float network's values though the weights before have been changed already."""
    batches = images(16)
    qann = calibrated(vit(), "default", batches)
    run, targets, _ = watched(qann, batches, monkeypatch)
    ends = [block.end for block in fitted_blocks(qann.program)]
    with torch.no_grad():
        expected = evaluate_plain(qann.program, run.floats, run.batches[0].inputs, keep=ends)
    assert len(targets) == len(ends) == 3
    for end, target in zip(ends, targets, strict=True):
        assert torch.equal(target, expected[end])


def test_what_enters_a_block_is_what_the_quantized_network_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = images(16)
    qann = calibrated(vit(), "default", batches)
    run, _, entered = watched(qann, batches, monkeypatch)
    seen: dict[str, Tensor] = {}
    ends = [block.end for block in fitted_blocks(qann.program)]
    qann.watch = lambda node, values: seen.update({node.name: values[node.name]} if node.name in ends else {})
    with torch.no_grad():
        learn(qann, run.batches[0].inputs)
    for end, values in zip(ends, entered[1:], strict=False):
        assert torch.equal(values[end], seen[end])


def test_a_block_that_got_worse_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_WEIGHT_RATE", 30.0)
    batches = images()
    qann = calibrated(vit(), "default", batches)
    before = {key: tensor.clone() for key, tensor in qann.state_dict().items()}
    reconstruct(qann, [qann.prepare(x) for x in batches])
    assert all(torch.equal(tensor, before[key]) for key, tensor in qann.state_dict().items())


def test_it_is_the_same_again_and_says_how_far_it_is() -> None:
    batches, told = images(16), []
    found = []
    for _ in range(2):
        qann = spikezip.quantize(vit(), QuantConfig(levels=8)).train()
        spikezip.calibrate(qann, batches, "thorough", progress=lambda done, total: told.append((done, total)))
        found.append(qann.state_dict())
        assert qann.training
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    done = [each for each, _ in told]
    assert done == [*range(1, told[0][1] + 1)] * 2
    assert len({total for _, total in told}) == 1


@pytest.mark.parametrize("how", ["inference mode", "no_grad", "frozen weights", "dropout"])
def test_wherever_it_is_called(how: str) -> None:
    model, batches = vit(hidden_dropout_prob=0.5 if how == "dropout" else 0.0), images(16)
    qann = spikezip.quantize(model, QuantConfig(levels=6, placement="products")).train(how == "dropout")
    if how == "frozen weights":
        for name, parameter in qann.named_parameters():
            parameter.requires_grad_(name.endswith("site_scale"))
    before = {key: tensor.clone() for key, tensor in qann.tensors().items()}
    with torch.inference_mode(how == "inference mode"):
        spikezip.calibrate(qann, [x.clone() for x in batches], "thorough")
    changed = [key for key, tensor in qann.tensors().items() if not torch.equal(tensor, before[key])]
    assert bool(changed) == (how != "frozen weights")
    assert all(parameter.grad is None for parameter in qann.parameters())


def interrupted(checkpoint: Path, seed: int = 0, after: int | None = None) -> Any:
    """A thorough calibration, interrupted after some of its steps."""
    qann = spikezip.quantize(vit(), QuantConfig(levels=6, placement="products")).eval()

    def stop(done: int, total: int) -> None:
        if after is not None and done == total - after:
            raise KeyboardInterrupt

    return spikezip.calibrate(qann, images(), "thorough", seed=seed, progress=stop, checkpoint=checkpoint)


def test_an_interrupted_calibration_goes_on_to_the_same_network(tmp_path: Path) -> None:
    expected = calibrated(vit(), "thorough", images())
    for after in (45, 25, 5):  # within one block after another
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path / "kept", after=after)
        assert (tmp_path / "kept").exists() == (after < 45)
    found = interrupted(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(x, found.state_dict()[name]) for name, x in expected.state_dict().items())


def test_what_is_kept_of_another_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "kept", after=5)
    with pytest.raises(spikezip.CheckpointError, match="another calibration"):
        interrupted(tmp_path / "kept", seed=1)
    (tmp_path / "kept").write_bytes(b"no calibration")
    with pytest.raises(spikezip.CheckpointError, match="remove it"):
        interrupted(tmp_path / "kept")
