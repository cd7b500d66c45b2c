"""Programs as JSON and networks as folders: equal after reading, and everything else is refused by name."""

import copy
import functools
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import pytest
import tiny_models
import torch
from captured import quantized_network
from safetensors.torch import load_file, save_file
from torch import nn

import spikezip
from spikezip import files
from spikezip.engines.network import convert
from spikezip.errors import CheckpointError, ConfigError, InputError
from spikezip.program import file
from spikezip.program.capture import capture
from spikezip.program.nodes import (
    KINDS,
    Convolution,
    Function,
    Grid,
    Input,
    Linear,
    Matmul,
    Program,
    Ref,
    Rows,
    Site,
    Values,
    Weight,
)  # fmt: skip
from spikezip.program.place import place
from spikezip.program.sizes import _ARGUMENTS, _OPERATIONS, Size
from spikezip.program.tidy import tidy
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.quant.network import QuantizedNetwork, quantize
from spikezip.quant.snap import snap

ROOT = Path(__file__).parents[2]
EVERYTHING = os.environ.get("SPIKEZIP_FAMILIES") == "all"  # takes several minutes
# With complex values, truths as weights, text and dtypes among arguments, sizes of several operations, several inputs,
# outputs within outputs, factors that were folded into weights, one-dimensional and grouped convolutions.
FAMILIES = (
    "fnet", "gpt-neo", "tapas", "mpt", "xlnet", "bart", "clip", "Dinov2Model", "separable-cnn", "wavenet",
    "nn.TransformerEncoder", "ViTForImageClassification", "BertForSequenceClassification", "GPT2LMHeadModel",
    "LlamaForCausalLM", "SwinForImageClassification",
)  # fmt: skip
# Shapes that depend on values, or random numbers in `eval()`: no program holds these.
REFUSED = {"xmod", "vjepa2", "informer", "dac"}
ALL_FAMILIES = [name for name in (*tiny_models.ALL, *families.FAMILIES) if name not in REFUSED]


def model_and_batch(name: str) -> tuple[nn.Module, dict[str, Any]]:
    if name in families.FAMILIES:
        return families.build(name), families.FAMILIES[name].batch(0)
    model = tiny_models.make(name)
    return model, tiny_models.inputs(model)


def assert_round_trip(program: Program) -> None:
    text = file.write(program)
    found = file.read(text)
    assert found == program
    assert repr(found) == repr(program), "1, 1.0 and True are equal, but not the same"
    assert file.write(found) == text


def tensors_of(network: Any) -> dict[str, torch.Tensor]:
    return dict(network.state_dict())


def assert_same_network(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert found.program == expected.program
    assert found.quant_config == expected.quant_config
    assert not found.training
    ours, theirs = tensors_of(found), tensors_of(expected)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name
        if tensor.is_floating_point():
            assert torch.equal(tensor.signbit(), theirs[name].signbit()), name
    assert [n for n, _ in found.named_parameters()] == [n for n, _ in expected.named_parameters()]


@pytest.mark.parametrize("name", ALL_FAMILIES if EVERYTHING else FAMILIES)
def test_programs_and_networks_come_back_equal(name: str, tmp_path: Path) -> None:
    captured = capture(*model_and_batch(name))
    assert_round_trip(captured.program)
    config = QuantConfig(levels=16)
    qann = QuantizedNetwork(place(tidy(captured.program), config, captured.modules), captured.tensors, config).eval()
    for site in qann.sites:
        qann.set_scale(site, torch.tensor(0.1))
    snn = convert(qann)
    for network in (qann, snn):
        assert_round_trip(network.program)
        files.save(network, tmp_path / network.kind)
        assert_same_network(files.load(tmp_path / network.kind), network)


# --- program.json


def small() -> Program:
    """A program with a node of every kind."""
    b, single = Size("symbol", ("b",)), torch.float32
    nodes = (
        Input("input", (b, 4), single),
        Weight("0.weight", (8, 4), single, "0", key="0.weight", trained=True),
        Grid("0.weight.grid", (8, 4), single, "0", weight="0.weight"),
        Linear("0.linear", (b, 8), single, "0", x="input", weight="0.weight.grid"),
        Function("1.gelu", (b, 8), single, "1", "aten.gelu.default", (Ref("0.linear"),), {"approximate": "tanh"}),
        Site("2.in", (b, 8), single, "1", u="1.gelu", lo=-8, hi=7),
        Values("2.in.values", (b, 8), single, "1", codes="2.in"),
        Convolution("2.conv", (b, 8), single, "2", x="2.in", weight="0.weight.grid", stride=(1,), padding=((0, 1),)),
        Matmul("2.matmul", (b, 8), single, "2", a="2.in", b="0.weight.grid", scaling=0.125),
        Rows("2.rows", (b, 8), single, "2", x="2.in.values", bits=16),
    )
    assert {type(node) for node in nodes} == set(KINDS.values())
    return Program(nodes, {"logits": Ref("2.matmul"), "hidden": (Ref("2.in.values"),)}, {"b": ("input", 0)}, "b")


def with_arguments(*args: Any, **kwargs: Any) -> Program:
    b = Size("symbol", ("b",))
    nodes = (
        Input("x", (b, 3), torch.float32),
        Function("y", (b, 3), torch.float32, "", "aten.mul.Tensor", (Ref("x"), *args), kwargs),
    )
    return Program(nodes, {"logits": Ref("y"), "more": (None, 1)}, {"b": ("x", 0)}, "b", output_class="a.B")


def test_every_kind_of_node_and_argument_comes_back() -> None:
    assert_round_trip(small())
    b = Size("symbol", ("b",))
    size = Size("*", (4, Size("//", (b, 2)), 0.5))
    sizes = tuple(Size(op, (b, 3)[: _ARGUMENTS.get(op, 2)]) for op in _OPERATIONS)
    program = with_arguments(
        math.inf, -math.inf, -3.4028234663852886e38, 5e-324, 0.1, 1 / 3, -0.0, 1.0, 1, True, False, None, 0,
        2**63 - 1, -(2**63) + 1, "tanh", (), ((1, (2.0, Ref("x"))), (size,)), sizes, *file._DTYPES.values(),
        dtype=torch.float64, mode="∞",
    )  # fmt: skip
    assert_round_trip(program)
    found = file.read(file.write(with_arguments(math.nan)))["y"]
    assert isinstance(found, Function)
    assert math.isnan(found.args[1])


def test_one_node_stands_on_one_line() -> None:
    program = small()
    lines = [line for line in file.write(program).splitlines() if line.startswith('{"kind"')]
    assert [json.loads(line.rstrip(","))["name"] for line in lines] == [node.name for node in program.nodes]


def test_what_cannot_be_stored_is_said() -> None:
    with pytest.raises(Exception, match="list cannot be stored"):
        file.write(with_arguments([1]))
    with pytest.raises(Exception, match=r"torch\.quint8 cannot be stored"):
        file.write(with_arguments(torch.quint8))


def set_field(name: str, value: Any, kind: str = "Function") -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        next(node for node in data["nodes"] if node["kind"] == kind)[name] = value

    return change


def set_entry(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__setitem__(name, value)


def deep(depth: int, leaf: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another format": (set_entry("format", "onnx"), "not a program"),
    "a later version": (set_entry("version", 2), "has version 2, this spikezip reads 1: upgrade"),
    "an entry too many": (set_entry("code", "import os"), "too many or too few: code"),
    "no nodes": (set_entry("nodes", {}), "a list is needed"),
    "an unknown kind": (set_field("kind", "Call"), "no kind 'Call'"),
    "a kind of another type": (set_field("kind", ["Input"]), "printable text"),
    "an unknown field": (set_field("code", "x"), "too many or too few: code"),
    "a name that is taken": (set_field("name", "input"), "name of its own"),
    "an empty name": (set_field("name", ""), "name of its own"),
    "a name that moves the cursor": (set_field("name", "\x1b[2J"), "printable"),
    "half a character": (set_field("name", "\ud800"), "printable"),
    "an unknown operation": (set_field("op", "aten.from_file.default"), "not an operation that a program may hold"),
    "an attribute": (set_field("op", "__class__"), "not an operation"),
    "an unknown dtype": (set_field("dtype", "Tensor"), "dtype: one of bool, uint8"),
    "a later node": (set_field("args", [{"ref": "2.matmul"}]), "no node before"),
    "itself": (set_field("args", [{"ref": "1.gelu"}]), "no node before"),
    "an unknown symbol": (set_field("shape", [["symbol", "z"]]), "nothing says what"),
    "an unknown symbol inside": (set_field("args", [{"size": ["+", 1, ["symbol", "z"]]}]), "nothing says what"),
    "no size": (set_field("shape", [["import", 1]]), "not a size"),
    "a size of nothing": (set_field("shape", [[]]), "not a size"),
    "a size that calls": (set_field("shape", [["**", 1]]), "not a size"),
    "a negative size": (set_field("shape", [-1]), "not negative"),
    "a size of a truth": (set_field("shape", [True]), "whole number"),
    "a deep size": (set_field("shape", [deep(99, ["symbol", "b"], lambda x: ["+", 1, x])]), "more than 64"),
    "a huge number": (set_field("args", [2**64]), "64 bits"),
    "a huge float": (set_field("args", [{"float": "1e9"}]), "one of inf"),
    "an unknown object": (set_field("args", [{"eval": "1"}]), "object of one entry"),
    "an object of two": (set_field("args", [{"ref": "x", "dtype": "bool"}]), "object of one entry"),
    "a deep argument": (set_field("args", [deep(40, 1, lambda x: [x])]), "more than 16"),
    "arguments of another type": (set_field("args", "x"), "args: a list"),
    "a weight without a key": (set_field("key", "", "Weight"), "a weight needs a key"),
    "weights of 7 bits": (set_field("bits", 7, "Weight"), "8, 16 or no bits"),
    "a grid of 7 bits": (set_field("bits", 7, "Grid"), "8 or 16 bits"),
    "rows of 7 bits": (set_field("bits", 7, "Rows"), "8 or 16 bits"),
    "a grid behind no site": (set_field("site", "0.weight", "Grid"), "behind an earlier site"),
    "a site of no codes": (set_field("hi", 0, "Site"), "codes from"),
    "a site of too many codes": (set_field("hi", 2**40, "Site"), "codes from"),
    "a truth for a number": (set_field("lo", True, "Site"), "lo: a whole number"),
    "a number for a truth": (set_field("relu", 1, "Site"), "relu: true or false"),
    "values of no site": (set_field("codes", "input", "Values"), "no site"),
    "a symbol of no input": (set_entry("symbols", {"b": ["0.weight", 0]}), "no input has that"),
    "a symbol of no dimension": (set_entry("symbols", {"b": ["input", 2]}), "no input has that"),
    "a symbol of -1": (set_entry("symbols", {"b": ["input", -1]}), "counted from 0"),
    "an unknown batch": (set_entry("batch", "n"), "not among them"),
    "an unknown output": (set_entry("output", {"ref": "nothing"}), "no node before"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_program_holds_is_refused(case: str) -> None:
    change, message = REFUSED[case]
    data = json.loads(file.write(small()))
    change(data)
    with pytest.raises(CheckpointError, match=rf"net/program\.json.*{message}"):
        file.read(json.dumps(data), "net/program.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[]", "not a program"),
        ('{"format": "spikezip program", "version": 1}', "too few"),
        ('{"format": NaN}', "NaN is no JSON"),
        ('{"format": 1, "format": 1}', "stands twice"),
        ("[" * 100_000, "damaged"),
        ("9" * 5000, "damaged"),
        (b"\xff\xfe\xfa", "damaged"),
        (" " * (file.MOST_BYTES + 1), "more than"),
    ],
)
def test_what_is_no_json_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"program.json.*{message}"):
        file.read(text)


def test_a_tower_of_powers_is_not_computed() -> None:
    tower = deep(40, ["symbol", "b"], lambda x: ["**", x, 9])
    with pytest.raises(InputError, match="has no value for a batch"):
        Size.from_json(tower).at({"b": 3})
    assert Size.from_json(["**", ["symbol", "b"], 3]).at({"b": 3}) == 27
    for size in (["//", 1, 0], ["*", *[["symbol", "b"]] * 64], ["**", -8, 0.5], ["int", ["/", 1e18, 1e-9]]):
        with pytest.raises(InputError, match="has no value"):
            Size.from_json(size).at({"b": 1 << 40})
    for wrong in (["*", *[2] * 65], ["%", 1], ["float", 1, 2], ["+", math.inf], ["+", 2**63], ["+", "b"], ["+", None]):
        with pytest.raises(ValueError, match="size"):
            Size.from_json(wrong)


def test_junk_in_any_place_is_an_error_of_ours() -> None:
    """Whatever stands anywhere in the file: a program, or a `CheckpointError`."""
    dice = random.Random(0)
    original = file.write(small())
    junk = [
        None,
        True,
        -1,
        0,
        1e400,
        2.5,
        "",
        "x",
        "input",
        [],
        [[]],
        {},
        {"ref": 1},
        {"size": [[]]},
        ["symbol"],
        {"a": 1},
    ]
    refused = 0
    for _ in range(400):
        data = json.loads(original)
        place: Any = data
        while True:  # walk down, and put something else there
            key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or dice.random() < 0.2:
                break
            place = place[key]
        place[key] = dice.choice(junk)
        try:
            file.read(json.dumps(data))
        except CheckpointError:
            refused += 1
    assert refused > 300


# --- folders


@functools.cache
def captured_once() -> QuantizedNetwork:
    return make_tiny()


def tiny() -> QuantizedNetwork:
    return copy.deepcopy(captured_once())


def make_tiny(**settings: Any) -> QuantizedNetwork:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return quantized_network(model, {"input": torch.randn(5, 4)}, QuantConfig(levels=16, **settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.save(tiny(), tmp_path / "net", extra={"config.json": b"{}"})
    return tmp_path / "net"


def test_a_loaded_network_computes_the_same(folder: Path) -> None:
    qann, batch = tiny(), {"input": torch.randn(5, 4)}
    files.save(convert(qann), folder.parent / "snn")
    assert torch.equal(files.load(folder)(**batch), qann(**batch))
    assert torch.equal(files.load(folder.parent / "snn")(**batch), qann(**batch))
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "program.json", "spikezip.json"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "who may read one may read all"


def test_a_network_without_scales_waits_for_them_again(tmp_path: Path) -> None:
    qann = quantize(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), example=torch.randn(2, 4)).eval()
    files.save(qann, tmp_path)
    assert files.load(tmp_path).waiting() == qann.waiting() == list(qann.sites)
    assert_same_network(files.load(tmp_path), qann)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("sites", [{}, {"2.in": SiteConfig(per_channel=True)}])
def test_snapped_weights_are_stored_as_integers(bits: int, sites: dict[str, Any], tmp_path: Path) -> None:
    qann = make_tiny(weight_bits=bits, sites=sites)
    assert any(site.by_channel for site in qann.sites.values()) == bool(sites)
    files.save(qann, tmp_path / "floats")
    snap(qann)
    files.save(qann, tmp_path / "packed")
    files.save(qann, tmp_path / "unpacked", compact=False)
    for name in ("packed", "unpacked"):
        assert_same_network(files.load(tmp_path / name), qann)
    stored = {name: load_file(tmp_path / name / "model.safetensors") for name in ("floats", "packed", "unpacked")}
    assert set(stored["floats"]) == set(stored["unpacked"]), "nothing else is packed"
    assert stored["packed"]["2.weight.codes"].dtype == (torch.int8 if bits == 8 else torch.int16)
    packed = json.loads((tmp_path / "packed" / "spikezip.json").read_text())["packed"]
    assert set(packed) == {"0.weight", "2.weight", "4.weight"}
    assert ("input_scale" in packed["2.weight"]) == bool(sites)


def test_a_negative_zero_stays_negative(tmp_path: Path) -> None:
    qann = tiny()
    snap(qann)
    with torch.no_grad():
        qann.get_parameter("2.weight")[0, 1] = -0.0
    files.save(qann, tmp_path)
    assert "2.weight" in load_file(tmp_path / "model.safetensors")
    assert_same_network(files.load(tmp_path), qann)


def test_an_embedding_table_is_packed_and_a_tied_one_stored_once(tmp_path: Path) -> None:
    qann = tiny()
    shared = qann.get_parameter("0.bias")
    qann.get_submodule("2").register_parameter("bias", shared)
    files.save(qann, tmp_path / "tied")
    assert json.loads((tmp_path / "tied" / "spikezip.json").read_text())["tied"] == {"2.bias": "0.bias"}
    again = files.load(tmp_path / "tied")
    assert_same_network(again, qann)
    assert again.get_parameter("2.bias") is again.get_parameter("0.bias")

    model, batch = model_and_batch("BertForSequenceClassification")
    bert = quantize(model, QuantConfig(levels=16), example=batch).eval()
    with torch.no_grad():
        table = bert.get_parameter("bert.embeddings.word_embeddings.weight")
        codes, scale = files.grid.weight_grid(table, 8)
        table.copy_(codes * scale[:, None])
    for site in bert.sites:
        bert.set_scale(site, torch.tensor(0.1))
    for network in (bert, convert(bert)):
        files.save(network, tmp_path / network.kind)
        stored = load_file(tmp_path / network.kind / "model.safetensors")
        assert any(name.endswith("word_embeddings.weight.codes") for name in stored)
        assert_same_network(files.load(tmp_path / network.kind), network)


def test_large_networks_come_in_shards(tmp_path: Path) -> None:
    qann = tiny()
    files.save(qann, tmp_path, shard_bytes=300)
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert_same_network(files.load(tmp_path), qann)
    (tmp_path / shards[1]).unlink()
    with pytest.raises(CheckpointError, match=rf"{shards[1]} is missing"):
        files.load(tmp_path)


def test_extra_files_are_listed_and_their_names_are_plain(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json was edited"):
        files.load(folder)
    for name in ("../x", "/x", "a/b", "..", ".x", "", "program.json", "MODEL.safetensors", "spikezip.json"):
        with pytest.raises(ConfigError, match="plain file name"):
            files.save(tiny(), folder, extra={name: b""})


def test_saving_again_replaces_a_network_and_keeps_what_is_no_part_of_it(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    (folder / "runs").mkdir()
    (folder / "runs" / "log").write_text("mine, too")
    (folder / "certificate.json").write_text("of another network")
    files.save(convert(tiny()), folder, shard_bytes=300)
    assert files.load(folder).kind == "snn"
    left = {p.name for p in folder.iterdir() if not p.name.startswith("model-")}
    assert left == {"README.md", "runs", "program.json", "spikezip.json"}
    assert (folder / "runs" / "log").read_text() == "mine, too"
    assert os.listdir(folder.parent) == ["net"], "nothing stays beside it"


@pytest.mark.parametrize("breaks_at", ["save_file", "fsync", "first rename", "second rename"])
def test_a_save_that_breaks_off_leaves_what_was_there(
    breaks_at: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    (folder / "README.md").write_text("mine")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    if breaks_at == "save_file":
        monkeypatch.setattr(files, "save_file", fail)
    elif breaks_at == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        rename, nth = Path.rename, ["first rename", "second rename"].index(breaks_at)
        calls: list[Path] = []

        def counted(self: Path, target: Any) -> Any:
            calls.append(self)
            return fail() if len(calls) == nth + 1 else rename(self, target)

        monkeypatch.setattr(Path, "rename", counted)
    with pytest.raises(KeyboardInterrupt):
        files.save(convert(tiny()), folder)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {**before, "README.md": b"mine"}
    assert os.listdir(folder.parent) == ["net"]
    assert files.load(folder).kind == "qann"


def test_a_killed_save_is_mended_by_the_next(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    away = folder.parent / ".net.before-save"
    folder.rename(away)  # killed between the two renames
    (folder.parent / ".net.saving").mkdir()
    with pytest.raises(CheckpointError, match=r"rename .*\.net\.before-save"):
        files.load(folder)
    files.save(convert(tiny()), folder)
    assert files.load(folder).kind == "snn"
    assert (folder / "README.md").exists()
    assert os.listdir(folder.parent) == ["net"]


def test_files_of_others_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    inode = tmp_path.stat().st_ino
    files.save(tiny(), tmp_path)  # beside them, in the same folder
    assert tmp_path.stat().st_ino == inode
    assert files.load(tmp_path).kind == "qann"
    other = tmp_path / "float"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json that spikezip did not save"):
        files.save(tiny(), other, extra={"config.json": b"{}"})
    assert os.listdir(other) == ["config.json"]
    with pytest.raises(ConfigError, match="is a file"):
        files.save(tiny(), tmp_path / "notes.txt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="current folder"):
        files.save(tiny(), ".")
    with pytest.raises(ConfigError, match="quantized or a spiking network, not Linear"):
        files.save(nn.Linear(2, 2), other)  # type: ignore[arg-type]


def test_a_link_to_a_folder_stays_one(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    files.save(convert(tiny()), link)
    assert link.is_symlink()
    assert files.load(folder).kind == files.load(link).kind == "snn"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_weights_that_are_not_finite_are_refused(value: float, folder: Path) -> None:
    qann = tiny()
    with torch.no_grad():
        qann.get_parameter("2.weight")[0, 0] = value
    with pytest.raises(ConfigError, match=r"'2\.weight' holds values that are not finite"):
        files.save(qann, folder.parent / "other")
    assert os.listdir(folder.parent) == ["net"]
    change_tensors(folder, lambda t: t["2.weight"].fill_(value))
    with pytest.raises(CheckpointError, match=r"net is damaged \(the weight '2\.weight' holds values that"):
        files.load(folder)


class Masked(nn.Module):
    """Looks at three of four values: a buffer says which, with an infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -math.inf]))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.second((self.first(input) + self.mask).softmax(-1))


def test_buffers_may_be_infinite_and_nothing_may_be_no_number(tmp_path: Path) -> None:
    batch = torch.randn(5, 4)
    qann = quantized_network(Masked(), {"input": batch})
    for network in (qann, convert(qann)):
        files.save(network, tmp_path / network.kind)
        assert torch.equal(files.load(tmp_path / network.kind)(input=batch), qann(input=batch))
    qann.get_buffer("mask")[0] = math.nan
    with pytest.raises(ConfigError, match="'mask' holds values that are not finite"):
        files.save(qann, tmp_path / "other")


class Registers(nn.Module):
    """Adds tokens of its own to those of the input, and has none."""

    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.empty(1, 0, 4))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([input, self.none.expand(len(input), -1, -1)], dim=1)
        return self.second(self.first(tokens).relu())


def test_empty_tensors_are_stored(tmp_path: Path) -> None:
    batch = torch.randn(2, 5, 4)
    qann = quantized_network(Registers(), {"input": batch})
    assert qann.get_parameter("none").numel() == 0
    for network in (qann, convert(qann)):
        files.save(network, tmp_path / network.kind)
        assert_same_network(files.load(tmp_path / network.kind), network)


def test_a_network_of_other_tensors_than_its_program_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is torch\.float64"):
        files.save(tiny().double(), tmp_path)


def resign(folder: Path, **changes: Any) -> None:
    """Change the manifest as somebody would who knows how checksums are made."""
    manifest = {**json.loads((folder / "spikezip.json").read_text()), **changes}
    manifest["checksum"] = files._checksum(manifest)
    (folder / "spikezip.json").write_text(json.dumps(manifest))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    manifest = json.loads((folder / "spikezip.json").read_text())
    resign(folder, files={**manifest["files"], path.name: files._digest(path)})


CHANGES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda t: t.pop("2.bias"), r"1 tensors are missing or unknown, such as 2\.bias"),
    "unknown": (lambda t: t.update(more=torch.ones(1)), "such as more"),
    "shape": (lambda t: t.update({"2.bias": torch.ones(9)}), r"2\.bias is torch\.float32 \[9\]"),
    "dtype": (lambda t: t.update({"2.bias": torch.ones(8).half()}), r"2\.bias is torch\.float16"),
    "scale": (lambda t: t["2.in.site_scale"].fill_(0), r"2\.in\.site_scale is a scale that is not positive"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_tensors_that_are_not_those_of_the_program_are_refused(case: str, folder: Path) -> None:
    change, message = CHANGES[case]
    change_tensors(folder, change)
    with pytest.raises(CheckpointError, match=rf"net is damaged \(.*{message}"):
        files.load(folder)


def test_integers_beyond_their_grid_are_refused(tmp_path: Path) -> None:
    files.save(convert(tiny()), tmp_path)
    change_tensors(tmp_path, lambda t: next(x for n, x in t.items() if n.endswith("codes")).fill_(-128))
    with pytest.raises(CheckpointError, match="integers beyond 127"):
        files.load(tmp_path)


PACKED: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], dict[str, Any], str]] = {
    "no scale": (lambda t: t.pop("2.weight.scale"), {}, r"2\.weight\.scale"),
    "no integers": (lambda t: t.pop("2.weight.codes"), {}, r"2\.weight\.codes"),
    "other integers": (lambda t: t.update({"2.weight.codes": t["2.weight.codes"].short()}), {}, "is not packed as"),
    "too few scales": (lambda t: t.update({"2.weight.scale": t["2.weight.scale"][:3].clone()}), {}, ""),
    "other bits": (len, {"bits": 16}, r"2\.weight is not packed as the manifest says"),
    "unknown bits": (len, {"bits": 7}, ""),
    "another dimension": (len, {"dim": 2}, r"2\.weight is not packed as the manifest says"),
    "no dimension": (len, {"dim": "x"}, r"2\.weight is not packed as the manifest says"),
    "scales of nothing": (len, {"input_scale": "nothing"}, "nothing"),
    "scales of another type": (len, {"input_scale": []}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", PACKED)
def test_weights_that_are_packed_otherwise_than_the_manifest_says_are_refused(case: str, tmp_path: Path) -> None:
    qann = tiny()
    snap(qann)
    files.save(qann, tmp_path / "net")
    packed = json.loads((tmp_path / "net" / "spikezip.json").read_text())["packed"]
    change, how, message = PACKED[case]
    change_tensors(tmp_path / "net", change)
    resign(tmp_path / "net", packed={**packed, "2.weight": {**packed["2.weight"], **how}})
    with pytest.raises(CheckpointError, match=rf"net is damaged \(.*{message}"):
        files.load(tmp_path / "net")


@pytest.mark.parametrize("kind", ["qann", "snn"])
def test_a_scale_is_read_with_a_dimension_or_without(kind: str, tmp_path: Path) -> None:
    saved = tiny() if kind == "qann" else convert(tiny())
    files.save(saved, tmp_path)

    def reshape(tensors: dict[str, torch.Tensor]) -> None:
        scales = {name: x for name, x in tensors.items() if x.numel() == 1 and name.endswith("scale")}
        assert len(scales) >= len(saved.program.sites)
        tensors.update({name: x.view(() if x.ndim else (1,)) for name, x in scales.items()})

    change_tensors(tmp_path, reshape)
    batch = torch.randn(5, 4)
    assert torch.equal(files.load(tmp_path)(input=batch), saved(input=batch))


MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "ann"}, "damaged at"),
    "kind of network": ({"kind": "snn"}, "not that of a network of kind snn"),
    "dtype": ({"dtype": "float64"}, "dtype is not float64"),
    "type": ({"tied": []}, "damaged at tied"),
    "settings": ({"quantization": {"levels": 7}}, "levels=7"),
    "unknown settings": ({"quantization": {"code": 7}}, "unknown quantization settings"),
    "settings of sites": ({"quantization": {"sites": [1]}}, "damaged"),
    "waiting": ({"waiting": ["nothing"]}, "wait for a scale"),
    "waiting for what": ({"waiting": [[]]}, "damaged"),
    "tied to nothing": ({"tied": {"a": "b"}}, "damaged"),
    "packed": ({"packed": {"2.weight": {"bits": 8, "dim": 0}}}, "damaged"),
    "up": ({"files": {"program.json": "", "../net/config.json": ""}}, "lists '../net/config.json'|program.json was"),
    "absolute": ({"files": {"/etc/passwd": "", "program.json": ""}}, "lists '/etc/passwd', which is no plain file"),
    "folder": ({"files": {"..": "", "program.json": ""}}, r"lists '\.\.'"),
    "no program": ({"files": {}}, "damaged at files"),
    "newer": ({"format_version": 3}, "format version 3, this spikezip reads 2: upgrade"),
    "foreign": ({"format": "onnx"}, "not a manifest"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_manifests_that_lie_are_refused(case: str, folder: Path) -> None:
    changes, message = MANIFESTS[case]
    resign(folder, **changes)
    with pytest.raises(CheckpointError, match=rf"net.*({message})"):
        files.load(folder)


def test_edited_and_damaged_files_are_named(folder: Path) -> None:
    for name, message in (
        ("model.safetensors", "was edited or cut short"),
        ("program.json", "was edited or cut short"),
        ("spikezip.json", "is damaged"),
    ):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        with pytest.raises(CheckpointError, match=f"{name} {message}"):
            files.load(folder)
        path.write_bytes(content)
    manifest = json.loads((folder / "spikezip.json").read_text())
    (folder / "spikezip.json").write_text(json.dumps({**manifest, "kind": "snn"}))
    with pytest.raises(CheckpointError, match=r"spikezip\.json was edited or damaged, its checksum"):
        files.load(folder)


def test_a_program_that_was_edited_and_signed_is_still_checked(folder: Path) -> None:
    path = folder / "program.json"
    path.write_text(path.read_text().replace("aten.layer_norm.default", "aten.set_.source_Storage"))
    manifest = json.loads((folder / "spikezip.json").read_text())
    resign(folder, files={**manifest["files"], path.name: files._digest(path)})
    with pytest.raises(CheckpointError, match=r"net/program\.json is damaged at node .* not an operation"):
        files.load(folder)


def test_links_are_refused_except_those_of_the_hub(folder: Path) -> None:
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (blobs / path.name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert files.load(snapshot).kind == "qann"
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(blobs / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is a link to somewhere else"):
        files.load(folder)


def test_foreign_folders_and_those_of_format_1(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        files.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"holds no spikezip\.json"):
        files.load(tmp_path)
    first = ROOT / "tests" / "data"
    old = next(path for path in sorted(first.iterdir()) if (path / "spikezip.json").exists())
    with pytest.raises(CheckpointError, match=rf"{old.name} is in format 1.*To convert it: .*read_format1"):
        files.load(old)


# --- spikezip.load


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A network of transformers, and a folder that holds it as `qann` and as `snn`."""
    model, batch = model_and_batch("ViTForImageClassification")
    qann = spikezip.calibrate(spikezip.quantize(model, QuantConfig(levels=16)), batch).eval()
    folder = tmp_path_factory.mktemp("vit")
    spikezip.save(qann, folder / "qann")
    spikezip.save(spikezip.convert(qann), folder / "snn")
    return qann, folder


def test_a_network_of_transformers_comes_back_as_one(vit: tuple[Any, Path]) -> None:
    qann, folder = vit
    assert_same_network(spikezip.load(folder / "qann"), qann)
    assert_same_network(spikezip.load(str(folder / "snn")), spikezip.convert(qann))
    assert spikezip.load(folder / "qann").config.to_dict() == qann.config.to_dict()


@pytest.mark.parametrize("content", ["[]", "{", '{"architectures": 3}', '{"architectures": [], "float_config": 7}'])
def test_a_configuration_that_makes_no_sense_is_named(content: str, vit: tuple[Any, Path], tmp_path: Path) -> None:
    folder = tmp_path / "net"
    shutil.copytree(vit[1] / "qann", folder)
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"net/config\.json was edited or cut short"):
        spikezip.load(folder)
    manifest = json.loads((folder / "spikezip.json").read_text())
    resign(folder, files={**manifest["files"], "config.json": files._digest(folder / "config.json")})
    with pytest.raises(CheckpointError, match=r"net/config\.json is damaged .*: save the network again"):
        spikezip.load(folder)


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt is a file; a folder or a name on the Hub is needed"):
        spikezip.load(tmp_path / "notes.txt")
    with pytest.raises(
        CheckpointError, match=r"there is no folder .*nowhere, and nothing on the Hub can have that name"
    ):
        spikezip.load(tmp_path / "nowhere")


WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = sys.modules["huggingface_hub"] = None
import spikezip, torch
for folder, *shape in (sys.argv[1], 2, 4), (sys.argv[2], 2, 3, 32, 32):
    qann, snn = (spikezip.load(f"{folder}/{kind}") for kind in ("qann", "snn"))
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
    ours, theirs = (found["logits"] if isinstance(found, dict) else found for found in (qann(x), snn(x)))
    assert torch.equal(ours, theirs)
    print(ours.double().sum().item())
"""


def test_folders_load_and_run_without_transformers(vit: tuple[Any, Path], tmp_path: Path) -> None:
    """Those of its models, too."""
    qann = tiny()
    files.save(qann, tmp_path / "qann")
    files.save(convert(qann), tmp_path / "snn")
    run = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(tmp_path), str(vit[1])]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    plain, image = torch.linspace(-1, 1, 8).view(2, 4), torch.linspace(-1, 1, 6144).view(2, 3, 32, 32)
    with torch.no_grad():
        expected = [qann(plain), vit[0](image).logits]
    assert [float(line) for line in done.stdout.split()] == [x.double().sum().item() for x in expected]
