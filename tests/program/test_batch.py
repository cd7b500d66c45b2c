"""Batches that a program cannot take are refused before work starts, and the message names the input."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import spikezip
from spikezip.errors import ConfigError, InputError
from spikezip.program.batch import by_position


@pytest.fixture(scope="module", params=["Bert", "GPT2", "Roberta"])
def networks(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Positions from a table that is cut, that are counted, and that are computed from the ids."""
    torch.manual_seed(0)
    size = {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
        "vocab_size": 30, "max_position_embeddings": 12, "pad_token_id": 0,
    }  # fmt: skip
    config = getattr(transformers, f"{request.param}Config")(**size)
    model = getattr(transformers, f"{request.param}Model")(config).eval()
    qann = spikezip.quantize(model, example={"input_ids": torch.ones(2, 5, dtype=torch.long)})
    spikezip.calibrate(qann, torch.randint(1, 30, (3, 6)))
    return qann, spikezip.convert(qann)


IDS = torch.tensor([[3, 7, 1], [29, 2, 2]])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS.float(), r"input_ids holds torch.float32, but whole numbers are needed.*\.long\(\)"),
        (IDS.numpy(), "input_ids is of the type ndarray: give a tensor"),
        (IDS.tolist(), "input_ids is of the type list: give a tensor"),
        (IDS + 4, "input_ids holds the number 33, but .*weight has the rows 0 to 29: use the tokenizer"),
        (IDS - 4, "input_ids holds the number -3, but .*weight has the rows 0 to 29: use the tokenizer"),
        (torch.ones(2, 14, dtype=torch.long), "(input_ids along dimension 1 is too long|no more tokens than)"),
    ],
    ids=["floats", "numpy", "list", "large", "negative", "long"],
)
def test_ids(networks: tuple[Any, Any], ids: Any, message: str) -> None:
    for network in networks:
        network(input_ids=IDS)
        with pytest.raises(InputError, match=message):
            network(input_ids=ids)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)) * scale)


def test_complex_numbers() -> None:
    batch = {"x": torch.randn(2, 4), "scale": torch.rand(2, 1)}
    qann = spikezip.calibrate(spikezip.quantize(Product().eval(), example=batch), batch)
    with pytest.raises(InputError, match=r"x holds complex numbers, but torch.float32 is needed"):
        qann({**batch, "x": batch["x"] + 1j})


def test_inputs_by_position() -> None:
    batch = {"x": torch.randn(2, 4), "scale": torch.rand(2, 1)}
    qann = spikezip.calibrate(spikezip.quantize(Product().eval(), example=batch), batch)
    expected = qann(batch)
    assert torch.equal(qann(batch["x"], batch["scale"]), expected)
    assert torch.equal(qann(batch["x"], scale=batch["scale"]), expected)
    with pytest.raises(InputError, match="3 inputs by position: the network takes x, scale"):
        qann(batch["x"], batch["scale"], torch.ones(2))
    with pytest.raises(InputError, match="x is given by position and by name"):
        qann(batch["x"], **batch)
    assert by_position(qann.program, (1,), {}, "scale") == {"scale": 1}


class Options(nn.Module):
    """A forward pass with an input that is an option."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, shift: Tensor, twice: bool = False) -> Tensor:
        y = self.first(x).relu() + shift
        return self.second(y * 2 if twice else y)


@pytest.fixture(scope="module")
def with_option() -> tuple[Any, Any, dict[str, Any]]:
    example = {"x": torch.randn(3, 4), "shift": torch.randn(3, 8), "twice": True}
    qann = spikezip.calibrate(spikezip.quantize(Options().eval(), example=example), example)
    return qann, spikezip.convert(qann), example


def test_options_are_those_of_the_capture(with_option: tuple[Any, Any, dict[str, Any]], tmp_path: Any) -> None:
    qann, _, example = with_option
    tensors = {"x": example["x"], "shift": example["shift"]}
    assert torch.equal(qann(example), qann(tensors))
    for other in (False, 3):
        with pytest.raises(InputError, match=f"twice={other}: the network was captured with twice=True"):
            qann({**tensors, "twice": other})
    with pytest.raises(InputError, match="late=True: the network was captured without late"):
        qann({**tensors, "late": True})
    spikezip.save(qann, tmp_path)
    assert spikezip.load(tmp_path).program.options == {"twice": True}


def test_a_spiking_network_takes_inputs_by_position(with_option: tuple[Any, Any, dict[str, Any]]) -> None:
    qann, snn, example = with_option
    assert torch.equal(snn(example["x"], example["shift"]), qann(example))


def test_calibration_sees_floats_under_autocast(with_option: tuple[Any, Any, dict[str, Any]]) -> None:
    qann, _, example = with_option
    again = copy.deepcopy(qann)
    for factor, network in ((2.0, qann), (3.0, again)):
        for site in network.sites:
            network.set_scale(site, network.scale(site) * factor)
    spikezip.calibrate(qann, example)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        spikezip.calibrate(again, example)
    assert all(torch.equal(qann.scale(site), again.scale(site)) for site in qann.sites)


class SharedNeurons(nn.Module):
    """One number shifts all samples, through a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.table, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.start = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.last(self.x(x).relu() + self.table((self.start * time).relu()))


class SharedDeeper(SharedNeurons):
    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.last(self.x(x).relu() + self.table(self.table(self.start * time).relu()))


@pytest.mark.parametrize("model", [SharedNeurons, SharedDeeper])
def test_neurons_that_all_samples_share(model: type[nn.Module]) -> None:
    example = {"x": torch.randn(3, 4), "time": torch.tensor(0.7)}
    qann = spikezip.calibrate(spikezip.quantize(model().eval(), example=example), example)
    snn = spikezip.convert(qann)
    for engine in ("auto", "spike", "event"):
        assert spikezip.verify(qann, snn, example, engine=engine).exact
    if model is SharedDeeper:
        with pytest.raises(ConfigError, match=r"folded.*all samples share these neurons.*choose engine='spike'"):
            spikezip.simulate(snn, example, engine="folded")
