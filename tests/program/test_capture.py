"""From a network to its program: symbols, names, structure, and errors that say why."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import families
import pytest
import tiny_models
import torch
from torch import Tensor, nn

from spikezip.errors import CoverageError, InputError
from spikezip.program.capture import capture
from spikezip.program.nodes import Convolution, Function, Linear, Matmul
from spikezip.program.sizes import Size
from spikezip.program.tidy import tidy


def test_batch_and_length_are_symbols() -> None:
    model = tiny_models.make("BertForSequenceClassification")
    program = capture(model, tiny_models.inputs(model)).program
    assert program.symbols == {"b": ("input_ids", 0), "n": ("input_ids", 1)}
    assert [str(size) for size in program["encoder.layer.0.attention.self.softmax"].shape] == ["b", "2", "n", "n"]
    assert program.output_class == "transformers.modeling_outputs.SequenceClassifierOutput"


def test_the_model_stays_as_it_was() -> None:
    model = tiny_models.make("LlamaForCausalLM").train()
    model.config.use_cache = True
    before = {key: x.clone() for key, x in model.state_dict().items()}
    implementation = model.config._attn_implementation
    capture(model, tiny_models.inputs(model))
    assert model.training
    assert all(module.training for module in model.modules())
    assert model.config.use_cache
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())


def test_a_batch_of_one_is_no_constant() -> None:
    assert capture(nn.Linear(3, 2), torch.randn(1, 3)).program.batch == "b"


def test_a_module_used_twice_has_two_sets_of_nodes() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    program = capture(Twice(), torch.randn(2, 4)).program
    assert [node.name for node in program.products] == ["layer.linear", "layer@1.linear"]
    assert {node.weight for node in program.products if isinstance(node, Linear)} == {"layer.weight"}


class Mixed(nn.Module):
    """Operations that are lowered: attention of torch, einsum, in-place writes, a convolution that spreads."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 12)
        self.spread = nn.ConvTranspose1d(4, 3, 3, stride=2, padding=1, output_padding=1, groups=1)
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        q, k = self.project(x).chunk(2, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
        scores = torch.einsum("bid,bjd->bij", mixed, q)
        scores.relu_()
        padded = x.new_zeros(x.shape[0], 4, 5)
        padded[:, :, :4] = scores
        return {"scores": scores, "wide": self.norm(self.spread(padded))}


def float_output(captured, inputs):  # type: ignore[no-untyped-def]
    from spikezip.program.batch import sizes_of
    from spikezip.program.functions import float_value

    values = {node.name: inputs[node.name] for node in captured.program.inputs}
    sizes = sizes_of(captured.program, inputs)
    for node in captured.program.nodes:
        if hasattr(node, "key"):
            values[node.name] = captured.tensors[node.key]
        elif node.name not in values:
            values[node.name] = float_value(node, values, sizes, torch.device("cpu"))
    return {key: values[ref.name] for key, ref in captured.program.output.items()}


def test_lowered_operations_compute_the_same() -> None:
    model = Mixed().eval().double()
    captured = capture(model, {"x": torch.randn(2, 4, 6, dtype=torch.float64)})
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    expected = model(x)
    for program in (captured.program, tidy(captured.program)):
        found = float_output(replace(captured, program=program), {"x": x})
        for key in expected:
            torch.testing.assert_close(found[key], expected[key])
    kinds = [type(node) for node in captured.program.products]
    assert kinds.count(Matmul) == 3
    assert kinds.count(Convolution) == 1
    # Batch norm is part of the convolution's weights after tidying.
    of_norm = [n for n in tidy(captured.program).nodes if isinstance(n, Function) and n.module == "norm"]
    assert all(not isinstance(size, Size) for n in of_norm for size in n.shape)


def test_a_program_can_be_read() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    lines = str(capture(model, torch.randn(2, 4)).program).splitlines()
    assert [line.split()[0] for line in lines] == ["input", "0.linear", "1.relu", "2.linear", "returns"]
    assert "0.linear" in lines[2]


@pytest.mark.parametrize("name", ["longformer", "nn.TransformerDecoder-looks-at-mask", "vilt"])
def test_what_cannot_be_captured_says_why_and_what_to_do(name: str) -> None:
    model = families.UNEXPORTABLE[name].make().eval()
    with pytest.raises(CoverageError) as caught:
        capture(model, families.UNEXPORTABLE[name].batch(1))
    first = str(caught.value).splitlines()[0]
    assert "cannot be captured" in first
    assert "torch.export" in first


def test_unknown_operations_are_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.det(x)

    with pytest.raises(CoverageError, match=r"aten.linalg_det.default in the model is not supported"):
        capture(Odd(), torch.randn(2, 3, 3))


def test_values_that_decide_a_shape_are_refused() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0]

    with pytest.raises(CoverageError, match=r"depends on the values.*torch\.where"):
        capture(Picks(), torch.randn(2, 3))


def test_bad_examples() -> None:
    with pytest.raises(InputError, match="an example is a tensor or a dict"):
        capture(nn.Linear(2, 2), {})
    model = tiny_models.make("BertForSequenceClassification")  # it takes any name, and uses few
    with pytest.raises(InputError, match="BertForSequenceClassification does not use number: leave it out"):
        capture(model, {**tiny_models.inputs(model), "number": torch.arange(3)})


class Scaled(nn.Module):
    """A product times a constant: one for each channel, or of another form."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, channels: int = 4) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(6, channels), nn.Parameter(torch.randn(shape, dtype=dtype))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.layer(x) * self.factor}


@pytest.mark.parametrize(
    ("model", "folds"),
    [
        (Scaled(4), True),
        (Scaled(1, 4), True),
        (Scaled(1, 1, 1, 4), False),
        (Scaled(5, channels=1), False),
        (Scaled(4, dtype=torch.float64), False),
    ],
    ids=["channels", "row", "more dimensions", "more channels", "other dtype"],
)
def test_constants_that_change_the_form_of_a_product_stay(model: Scaled, folds: bool) -> None:
    captured = capture(model, torch.randn(2, 6))
    tidied = replace(captured, program=tidy(captured.program))
    expected = model(x := torch.randn(3, 6))["y"]
    found = float_output(tidied, {"x": x})["y"]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    assert (len(tidied.program[tidied.program.output["y"].name].reads) == 3) == folds  # x, weight, bias


def test_autocast_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plain = capture(model, torch.randn(2, 4)).program
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert capture(model, torch.randn(2, 4)).program == plain


def test_threads_capture_one_after_another() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    with ThreadPoolExecutor(3) as pool:
        programs = list(pool.map(lambda _: str(capture(model, x).program), range(3)))
    assert len(set(programs)) == 1
    assert {type(parameter) for parameter in model.parameters()} == {nn.Parameter}
    assert model.eval()(x).isfinite().all()


def test_sizes_of_windows() -> None:
    model = tiny_models.make("SwinForImageClassification")
    program = capture(model, tiny_models.inputs(model)).program
    shape = program["encoder.layers.0.blocks.0.attention.softmax"].shape
    assert isinstance(shape[0], Size)
    assert shape[0].at({"b": 3}) == 48
    assert all(isinstance(node, (Linear, Convolution, Matmul)) for node in program.products)
