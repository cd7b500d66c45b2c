"""Groups of the optimizer by hand, and scales that stay positive whatever the optimizer does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import toys
from transformers import SwinConfig, SwinForImageClassification

from spikezip.models.networks import quantize
from spikezip.quant.calibration import calibrate
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.quant.network import QuantizedNetwork
from spikezip.training import DivergedError, keep_scales_positive
from spikezip.training.depth import blocks
from spikezip.training.optimizer import make_optimizer
from spikezip.training.settings import TrainStage

RATE, DECAY = 1e-2, 0.5


def groups(model: Any, **settings: Any) -> dict[str, tuple[float, float]]:
    """Of every parameter: learning rate and weight decay. Each must be in one group."""
    stage = TrainStage.from_json(toys.stage(learning_rate=RATE, weight_decay=0.3, layer_decay=DECAY, **settings))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, tuple[float, float]] = {}
    for group in make_optimizer(model, stage).param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert name not in found
            found[name] = (group["lr"], group["weight_decay"])
    assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    return found


def by_hand(found: dict[str, tuple[float, float]], powers: dict[str, int]) -> None:
    """`powers`: prefix of a name → how often the rate is halved. The longest prefix counts; all names are covered."""
    for name, (rate, _) in found.items():
        prefix = max((p for p in powers if name.startswith(p)), key=len)
        assert rate == pytest.approx(RATE * DECAY ** powers[prefix]), name  # powers of floats


def test_rates_of_a_vit() -> None:
    found = groups(toys.vit(num_hidden_layers=3))
    by_hand(
        found,
        {"vit.embeddings": 4, "vit.layers.0": 3, "vit.layers.1": 2, "vit.layers.2": 1, "vit.layernorm": 0, "class": 0},
    )


def test_rates_of_a_bert() -> None:
    found = groups(toys.bert(num_hidden_layers=2))
    by_hand(
        found,
        {"bert.embeddings": 3, "bert.encoder.layer.0": 2, "bert.encoder.layer.1": 1, "bert.pooler": 0, "classifier": 0},
    )


def test_rates_of_a_swin() -> None:
    """Blocks are counted through the stages; the merging between two stages goes with the block before it."""
    model = SwinForImageClassification(SwinConfig(**{**tiny_models.SWIN, "depths": [2, 1]}))
    names = blocks(model)
    assert len(names) == 3
    merging = names[0].rsplit(".blocks", 1)[0] + ".downsample"
    assert any(name.startswith(merging) for name, _ in model.named_parameters())
    found = groups(model)
    by_hand(
        found,
        {"swin.embeddings": 4, names[0]: 3, names[1]: 2, merging: 2, names[2]: 1, "swin.layernorm": 0, "classifier": 0},
    )


@pytest.mark.parametrize("name", tiny_models.HEADS)
def test_every_parameter_has_its_group(name: str) -> None:
    model = tiny_models.make(name)
    found = groups(model)
    rates = sorted({rate for rate, _ in found.values()})
    assert len(blocks(model)) == (4 if name.startswith("Swin") else 2)
    expected = [RATE * DECAY**power for power in reversed(range(len(blocks(model)) + 2))]
    assert rates == pytest.approx(expected)  # powers of floats


def test_only_matrices_decay() -> None:
    for model in (toys.vit(), toys.bert()):
        shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
        for name, (_, decay) in groups(model).items():
            matrix = shapes[name] > 1 and "position_embedding" not in name and "cls_token" not in name
            assert decay == (0.3 if matrix else 0.0), name


def test_scales_have_their_own_rate_and_no_decay() -> None:
    qann = quantize(toys.vit())
    scales = {qann.scale_key(name) for name in qann.sites}
    plain, other = groups(qann), groups(qann, scale_learning_rate=3.0)
    assert len(scales) == len(qann.sites)
    assert scales < plain.keys()
    for name in plain:
        assert other[name][0] == pytest.approx(plain[name][0] * (3.0 if name in scales else 1.0)), name
        assert name not in scales or other[name][1] == 0.0
    assert plain["vit.layers.0.mlp.fc2.site_scale"][0] == pytest.approx(RATE * DECAY)


def test_frozen_parameters_are_left_out() -> None:
    model = toys.vit()
    model.vit.embeddings.requires_grad_(False)
    assert not any(name.startswith("vit.embeddings") for name in groups(model))


@pytest.fixture(scope="module")
def quantized() -> QuantizedNetwork:
    qann = quantize(toys.vit(hidden_act="relu"))
    return calibrate(qann, torch.randn(4, 3, 8, 8), "quick")


@pytest.fixture
def calibrated(quantized: QuantizedNetwork) -> QuantizedNetwork:
    return copy.deepcopy(quantized)


def small(**settings: Any) -> tuple[QuantizedNetwork, torch.nn.Parameter]:
    """A network with one site, and its scale."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU(), torch.nn.Linear(2, 3))
    made = quantize(layers, QuantConfig(**settings), example=torch.randn(2, 4))
    [name] = made.sites
    return made, made.scale(name)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("rate", [10.0, 1e6])
def test_scales_never_reach_zero(optimizer: Any, rate: float, calibrated: QuantizedNetwork) -> None:
    scales = [calibrated.scale(name) for name in calibrated.sites]
    made = optimizer(scales, lr=rate)
    keep_scales_positive(made, calibrated)
    start = torch.cat([scale.detach().clone() for scale in scales])
    for step in range(1, 4):
        for scale in scales:
            scale.grad = torch.ones_like(scale)  # towards zero
        made.step()
        # Halving is exact.
        assert torch.equal(torch.cat([scale.detach() for scale in scales]), start * 0.5**step)
    for scale in scales:
        scale.grad = -torch.ones_like(scale)
    before = torch.cat([scale.detach().clone() for scale in scales])
    made.step()
    if optimizer is torch.optim.SGD:  # the others have momentum
        assert torch.equal(torch.cat([scale.detach() for scale in scales]), before + rate)


def test_small_steps_are_left_alone() -> None:
    network, scale = small()
    made = torch.optim.SGD([scale], lr=0.25)
    keep_scales_positive(made, network)
    scale.grad = torch.ones(1)
    made.step()
    assert scale.item() == 0.75


def test_an_absurd_rate_leaves_scales_positive(tmp_path: Path) -> None:
    stages = {"quantize": {"batches": 1}, "qat": toys.stage(learning_rate=10.0, clip=0, epochs=2)}
    data = toys.images(train=128)
    try:
        result = toys.run(toys.vit(hidden_act="relu"), stages, data, tmp_path / "run")
    except DivergedError as error:
        assert "training diverged at step" in str(error)  # noqa: PT017  # either end is right
        return
    for name in result.qann.sites:
        assert bool((result.qann.scale(name) > 0).all()), name
        assert bool(result.qann.scale(name).isfinite().all()), name
    assert result.metrics["qat"]["smallest_scale"] > 0


def test_scales_per_channel_move_in_proportion() -> None:
    """AdamW wants to move every scale by the rate; a scale a thousand times smaller moves a thousand times less."""
    network, scale = small(sites={"*": SiteConfig(per_channel=True)})
    [name] = network.sites
    network.set_scale(name, torch.tensor([2.0, 2.0e-3]))
    optimizer = torch.optim.AdamW([scale], lr=1e-3, weight_decay=0.0)
    keep_scales_positive(optimizer, network)
    for _ in range(200):
        scale.grad = torch.ones(2)
        optimizer.step()
    large, little = scale.tolist()
    assert 1.5 < large < 1.7
    assert little / 2.0e-3 == pytest.approx(large / 2.0, rel=1e-4)  # the same products, rounded in float32


def test_no_scale_is_driven_to_zero() -> None:
    network, scale = small()
    optimizer = torch.optim.SGD([scale], lr=100.0)
    keep_scales_positive(optimizer, network)
    for _ in range(200):
        scale.grad = torch.ones(1)
        optimizer.step()
    assert scale.item() == 2.0**-40
