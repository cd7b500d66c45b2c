"""The network in NumPy alone, `examples/numpy_snn.py`: it has the bits that the library has."""

import doctest
import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import tiny_models
import torch
from captured import quantized_network
from torch import Tensor, nn

import spikezip
from spikezip.engines.engine import Drive
from spikezip.engines.loop import run
from spikezip.engines.quantized import quantized
from spikezip.engines.synapses import Synapse, input_layer
from spikezip.program import functions
from spikezip.program.nodes import Linear
from spikezip.quant.config import QuantConfig, SiteConfig

FILE = Path(__file__).parents[1] / "examples" / "numpy_snn.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("numpy_snn", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["numpy_snn"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


numpy_snn = load_example()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):  # −inf − (−inf) is meant to be NaN
        yield


def tiny(name: str) -> Callable[[], tuple[nn.Module, dict[str, Tensor]]]:
    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        model = tiny_models.make(name)
        return model, tiny_models.inputs(model)

    return make


def family(name: str) -> Callable[[], tuple[nn.Module, dict[str, Tensor]]]:
    return lambda: (families.build(name), families.FAMILIES[name].batch(0))


def layers(width: int) -> Callable[[], tuple[nn.Module, dict[str, Tensor]]]:
    """Two layers. If they are wide, a float32 does not hold the sums with the bytes of 16-bit weights."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4)), {"input": torch.randn(300, 6)}

    return make


NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, dict[str, Tensor]]], QuantConfig]] = {
    "vit": (tiny("ViTForImageClassification"), QuantConfig()),
    "bert in 16 bits": (tiny("BertForSequenceClassification"), QuantConfig(weight_bits=16, embedding_bits=8)),
    "bert per channel": (
        tiny("BertForSequenceClassification"),
        QuantConfig(placement="products", sites={"*intermediate_act_fn": SiteConfig(per_channel=True)}),
    ),
    "llama": (tiny("LlamaForCausalLM"), QuantConfig()),
    "gpt2": (tiny("GPT2LMHeadModel"), QuantConfig()),
    "swin": (tiny("SwinForImageClassification"), QuantConfig()),
    "cnn": (family("cnn"), QuantConfig()),
    "separable cnn": (family("separable-cnn"), QuantConfig()),
    "torch's encoder": (family("nn.TransformerEncoder"), QuantConfig()),
    "t5": (family("t5-encoder"), QuantConfig()),
    "samples meet": (family("nn.TransformerEncoder-sequence-first"), QuantConfig()),
    "layers": (layers(40), QuantConfig(weight_bits=16, levels=256)),
    "wide layers": (layers(1500), QuantConfig(weight_bits=16, levels=256)),
}
SPIKING = ("bert in 16 bits", "bert per channel", "gpt2", "cnn", "torch's encoder")


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A spiking network, what the example reads of it from a folder, and a batch."""
    make, config = NETWORKS[request.param]
    model, batch = make()
    snn = spikezip.convert(quantized_network(model, batch, config))
    folder = tmp_path_factory.mktemp("snn") / "network"
    spikezip.save(snn, folder)
    return snn, numpy_snn.read_network(folder), snn.prepare(batch)


def as_numpy(inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in inputs.items()}


def assert_same(found: Any, expected: Any, what: str = "the output") -> None:
    """Equal bits, shapes and dtypes, in structures alike. A NaN is a NaN, and zero has no sign."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name], name)
    elif isinstance(expected, (tuple, list)):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{what}[{i}]")
    else:
        expected = expected.numpy()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
        np.testing.assert_array_equal(found, expected, what)


@pytest.mark.parametrize("saved", NETWORKS, indirect=True)
def test_codes_and_output_are_those_of_the_library(saved: tuple[Any, Any, Any]) -> None:
    snn, network, inputs = saved
    output, codes = quantized(snn.frozen(), inputs)
    found, found_codes = numpy_snn.quantized(network, as_numpy(inputs))
    assert list(found_codes) == list(codes)
    assert_same(found_codes, codes)
    assert_same(found, output)


@pytest.mark.parametrize("saved", SPIKING, indirect=True)
def test_spikes_are_those_of_the_library(saved: tuple[Any, Any, Any]) -> None:
    snn, network, inputs = saved
    expected = run(snn.frozen(), inputs, Drive(engine="spike", steps="equilibrium", record=tuple(snn.program.sites)))
    samples = numpy_snn.samples(network, as_numpy(inputs))
    runs = [numpy_snn.spiking(network, sample) for sample in samples]
    assert [one.t_eq for one in runs] == expected.t_eq
    for row, one in enumerate(runs):
        for site, counts in expected.spike_counts.items():
            spikes = counts[:, row].numpy()
            assert np.array_equal(one.spikes[site], spikes[: len(one.outputs)]), site
            assert not spikes[len(one.outputs) :].any(), site
        assert np.array_equal(numpy_snn.quantized(network, samples[row])[1][site], one.codes[site])
    # All samples together, and each neuron.
    together = numpy_snn.Spiking(network, as_numpy(inputs))
    for step in range(12):
        together.step()
        for site, trains in expected.trains.items():
            assert np.array_equal(together.spikes[site], trains[step].numpy()), (site, step)


@pytest.mark.parametrize("saved", ["samples meet"], indirect=True)
def test_samples_that_depend_on_one_another_stay_together(saved: tuple[Any, Any, Any]) -> None:
    snn, network, inputs = saved
    (batch,) = numpy_snn.samples(network, as_numpy(inputs))
    found = numpy_snn.spiking(network, batch)
    expected = run(snn.frozen(), inputs, Drive(engine="spike", steps="equilibrium"))
    assert {found.t_eq} == set(expected.t_eq)
    assert_same(found.codes, {site: codes.float() for site, codes in expected.tracers.items()})


@pytest.mark.parametrize("saved", ["layers", "wide layers", "llama"], indirect=True)
def test_products_are_those_of_the_library(saved: tuple[Any, Any, Any]) -> None:
    snn, network, _ = saved
    frozen = snn.frozen()
    products = [node for node in frozen.program.products if isinstance(node, Linear)]
    for node in products:
        here, width = network.nodes[node.name], node.shape[-1]
        weight, _ = numpy_snn.weight_of(network, here)
        assert weight.shape[0] == width
        x = numbers(200, weight.shape[1])
        if node.name not in frozen.program.varying:  # it sees the input
            assert_same(numpy_snn.input_layer(network, here, x.numpy()), input_layer(frozen, node, x), node.name)
            continue
        synapse = Synapse(frozen, node)
        codes = (x * 100).round().clamp(synapse.site.lo, synapse.site.hi)
        sums = numpy_snn.integer_sums(here, weight, codes.numpy())
        assert_same(numpy_snn.synapse(network, here, sums), synapse.output(synapse.totals(codes)), node.name)


# ------------------------------------------------------------------------------------------- functions one by one


def numbers(*shape: int, scale: float = 3.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * scale


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e-30, 1e-42, 88.7, -88.7, 103.0, 1e5, -1e5])
NOT_FINITE = torch.tensor([torch.inf, -torch.inf, torch.nan])


@pytest.mark.parametrize(
    ("name", "more", "named"),
    [
        *((name, (), {}) for name in numpy_snn.CURVES if name != "glu"),
        ("gelu", (), {"approximate": "tanh"}),
        ("softplus", (2.0, 5.0), {}),
        ("elu", (0.5, 2.0, 0.7), {}),
        *(("pow.Tensor_Scalar", (y,), {}) for y in (2, 3.0, -3, 0.5, -0.5, 1.3, -70.0, 0)),
        *((name, (), {}) for name in ("sqrt", "hardswish", "hardsigmoid", "leaky_relu", "reciprocal", "square")),
    ],
)
def test_functions_of_one_number(name: str, more: tuple[Any, ...], named: dict[str, Any]) -> None:
    x = torch.cat([numbers(2000), numbers(2000, scale=30.0), numbers(500, scale=1e-3), SPECIAL, NOT_FINITE])
    check_function(name, (x, *more), named)


ROWS = torch.cat([numbers(5, 7, 33), numbers(1, 7, 33, scale=1e-20), numbers(1, 7, 33, scale=1e20)])
PICTURE = numbers(3, 4, 9, 10)


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("softmax.int", (ROWS[:6], -1), {}),
        ("softmax.int", (ROWS, 1), {}),
        ("softmax.int", (numbers(4, 3000, scale=20.0), -1), {}),
        ("softmax.int", (torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [torch.inf, 0.0]]), 1), {}),
        ("layer_norm", (ROWS, [33], numbers(33), numbers(33), 1e-12), {}),
        ("layer_norm", (PICTURE, [9, 10], None, None, 1e-5), {}),
        ("layer_norm", (torch.zeros(2, 8), [8]), {}),
        ("layer_norm", (numbers(2, 20000), [20000]), {}),
        ("group_norm", (PICTURE, 2, numbers(4), numbers(4), 1e-5), {}),
        ("sum.dim_IntList", (ROWS, [0, 2], True), {}),
        ("sum", (ROWS,), {}),
        ("sum.dim_IntList", (torch.tensor([[1.0, torch.inf], [torch.inf, -torch.inf]]), [1]), {}),
        ("sum.dim_IntList", (torch.arange(12).view(3, 4) > 4, [1]), {}),
        ("mean.dim", (ROWS, [1]), {}),
        ("mean", (PICTURE,), {}),
        ("cumsum", (ROWS, -1), {}),
        ("cumsum", (torch.arange(12).view(3, 4) > 4, 1), {}),
        ("linalg_vector_norm", (ROWS, 2, [-1], True), {}),
        ("glu", (numbers(3, 8), -1), {}),
        ("max_pool2d", (PICTURE, [3, 3], [2, 2], [1, 1]), {}),
        ("max_pool2d", (PICTURE, [3, 2], [2, 2], [0, 1], [2, 1], True), {}),
        ("avg_pool2d", (PICTURE, [3, 3], [2, 2], [1, 1]), {}),
        ("avg_pool2d", (PICTURE, [3, 3], [2, 2], [1, 1], True, False), {}),
        ("avg_pool1d", (PICTURE[0], [4], [3]), {}),
        ("adaptive_avg_pool2d", (PICTURE, [4, 3]), {}),
        ("adaptive_avg_pool1d", (PICTURE[0], [1]), {}),
        ("constant_pad_nd", (PICTURE, [1, -2, 0, 3], 0.5), {}),
        ("repeat_interleave.self_int", (PICTURE, 2, 1), {}),
        ("unfold", (PICTURE, 2, 3, 2), {}),
        ("gather", (PICTURE, 1, torch.tensor([[[[3, 0], [1, 2]]]])), {}),
        ("index.Tensor", (PICTURE, [None, torch.tensor([2, 0])]), {}),
        ("roll", (PICTURE, [1, -2], [2, 3]), {}),
        ("flatten.using_ints", (PICTURE, 1, 2), {}),
        ("expand", (PICTURE[:1], [2, -1, 9, 10]), {}),
        ("slice.Tensor", (PICTURE, -1, 1, 9223372036854775807, 3), {}),
        ("topk", (torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3), {}),
        ("max.dim", (torch.tensor([[1.0, 3.0, 3.0]]), 1), {}),
        ("add.Tensor", (torch.arange(5), 0.1), {}),
        ("div.Tensor", (torch.arange(5), 3), {}),
        ("mul.Tensor", (numbers(9), 0.1), {}),
        ("rsub.Scalar", (numbers(9), 0.1), {}),
        ("clamp", (numbers(9), -0.1, 0.3), {}),
        ("clamp_min", (numbers(9), 0.1), {}),
        ("where.ScalarOther", (numbers(9) > 0, numbers(9), -3.4028234663852886e38), {}),
        ("masked_fill.Scalar", (numbers(9), numbers(9) > 0, -torch.inf), {}),
        ("ge.Scalar", (torch.tensor([0.1, 0.2]), 0.1), {}),
        ("le.Tensor", (torch.arange(4), torch.tensor(2)), {}),
        ("div.Tensor_mode", (numbers(50), 0.3), {"rounding_mode": "floor"}),
    ],
)
def test_functions_of_tensors(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    check_function(name, args, named)


def check_function(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A function of the example on the same numbers as that of the library."""
    op = f"aten.{name}" if "." in name else f"aten.{name}.default"
    expected = functions.evaluate(op, args, named, torch.float32, torch.device("cpu"))

    def to_numpy(x: Any) -> Any:
        return [to_numpy(value) for value in x] if isinstance(x, list) else x.numpy() if isinstance(x, Tensor) else x

    dtype = (expected if isinstance(expected, Tensor) else expected[0]).numpy().dtype
    assert_same(numpy_snn.evaluate(op, [to_numpy(x) for x in args], named, dtype), expected, name)


# ------------------------------------------------------------------------------------------- files and command line


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Tensor]]:
    """A quantized and a spiking network in folders, and a batch."""
    model, batch = tiny("BertForSequenceClassification")()
    qann = quantized_network(model, batch)
    snn = spikezip.convert(qann)
    folder = tmp_path_factory.mktemp("folders")
    spikezip.save(qann, folder / "qann")
    spikezip.save(snn, folder / "snn")
    inputs = snn.prepare(batch)
    np.savez(folder / "input.npz", **as_numpy(inputs))
    return folder / "qann", folder / "snn", inputs


def test_the_command_line_needs_no_torch(folders: tuple[Path, Path, dict[str, Tensor]]) -> None:
    _, folder, inputs = folders
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__'); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code.replace("sys.argv[1]", repr(str(FILE)))]
    command += [str(folder), str(folder.parent / "input.npz"), "--hash"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    snn = spikezip.load(folder)
    expected = spikezip.simulate(snn, inputs, steps="equilibrium")
    lines = done.stdout.splitlines()
    spikes = sum(counts.sum(0) for counts in expected.spike_counts.values())
    for row, t_eq in enumerate(expected.t_eq):
        assert f"sample {row}: T_eq {t_eq}, {spikes[row]} spikes, codes of the quantized network" in lines
        assert f"logits float32 [1, 3]\n{expected.logits[row : row + 1].numpy()}" in done.stdout
    hashes = dict(reversed(line.split()) for line in lines if len(line.split()[0]) == 64)
    assert hashes == {
        site: hashlib.sha256(codes.numpy().astype("<i2").tobytes()).hexdigest()
        for site, codes in expected.tracers.items()
    }


def test_some_steps_without_an_end(
    folders: tuple[Path, Path, dict[str, Tensor]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, inputs = folders
    numpy_snn.main([str(folder), str(folder.parent / "input.npz"), "--steps", "5"])
    shown = capsys.readouterr().out
    assert "sample 0: T_eq None" in shown
    assert "other than those of the quantized network" in shown
    expected = spikezip.simulate(spikezip.load(folder), inputs, steps=5, engine="spike")
    assert str(expected.logits[:1].numpy()) in shown


def test_an_unknown_operation_is_named_before_anything_is_computed(
    folders: tuple[Path, Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    _, folder, _ = folders
    for name in ("spikezip.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    program = json.loads((folder / "program.json").read_bytes())
    (node,) = (node for node in program["nodes"] if node.get("op") == "aten.tanh.default")
    node["op"] = "aten.fft_fft.default"
    (tmp_path / "program.json").write_text(json.dumps(program))
    with pytest.raises(numpy_snn.UnsupportedError, match=rf"'{node['name']}'.*the operation aten.fft_fft.default"):
        numpy_snn.read_network(tmp_path)


def test_a_quantized_network_is_to_be_converted(folders: tuple[Path, Path, dict[str, Tensor]]) -> None:
    folder, _, _ = folders
    with pytest.raises(numpy_snn.UnsupportedError, match=r"spikezip convert .*qann snn/"):
        numpy_snn.read_network(folder)
    with pytest.raises(SystemExit, match="holds a quantized network"):
        numpy_snn.main([str(folder), str(folder.parent / "input.npz")])


def test_weights_in_floats_are_refused(tmp_path: Path) -> None:
    batch = {"input": torch.randn(2, 4)}
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    spikezip.save(spikezip.convert(quantized_network(model, batch, QuantConfig(weight_bits=None))), tmp_path / "snn")
    with pytest.raises(numpy_snn.UnsupportedError, match="product of floats"):
        numpy_snn.read_network(tmp_path / "snn")


def test_wrong_inputs_are_named(folders: tuple[Path, Path, dict[str, Tensor]]) -> None:
    _, folder, inputs = folders
    network = numpy_snn.read_network(folder)
    arrays = as_numpy(inputs)
    with pytest.raises(ValueError, match="the network needs input_ids, attention_mask"):
        numpy_snn.quantized(network, {"input_ids": arrays["input_ids"]})
    with pytest.raises(ValueError, match="attention_mask has the shape"):
        numpy_snn.quantized(network, {**arrays, "attention_mask": arrays["attention_mask"][:, 1:]})


def test_examples() -> None:
    assert doctest.testmod(numpy_snn).failed == 0
