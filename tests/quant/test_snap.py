"""Snapped weights and compact folders: the same integers, the same scales, a quarter of the space."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import spikezip
from spikezip.engines.quantized import quantized
from spikezip.ops.grid import weight_grid
from spikezip.ops.grid.reference import LARGEST_WEIGHT
from spikezip.program.capture import capture
from spikezip.program.nodes import Grid
from spikezip.quant import network
from spikezip.quant.snap import _settle, grids, snap

VIT, BERT = "ViTForImageClassification", "BertForSequenceClassification"
GPT2, LLAMA = "GPT2LMHeadModel", "LlamaForCausalLM"


@pytest.fixture(autouse=True, scope="module")
def _captured_once() -> Iterator[None]:
    """Most of the time of a test goes into capturing its model, which does not depend on bits."""
    found: dict[nn.Module, Any] = {}

    def once(model: nn.Module, example: Any, batch_dim: int = 0) -> Any:
        if model not in found:
            found[model] = capture(model, example, batch_dim)
        return found[model]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "capture", once)
        yield


@functools.cache
def float_model(name: str) -> Any:
    return tiny_models.make(name)


def make(name: str, **config: Any) -> tuple[Any, dict[str, Tensor]]:
    """A calibrated network, its tables on a grid as its weights are, and a batch for it."""
    model = float_model(name)
    batch = tiny_models.inputs(model)
    settings = {"levels": 16, "embedding_bits": None if name == VIT else config.get("weight_bits", 8), **config}
    qann = spikezip.quantize(model, spikezip.QuantConfig(**settings))
    return spikezip.calibrate(qann, [batch], "quick").eval(), batch  # scales per channel where a test sets them


def state(network: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def equal_states(a: Any, b: Any) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def packed_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "spikezip.json").read_text())["packed"]
    return found


def settled(weight: Tensor, bits: int, channels: Tensor | None = None) -> tuple[Tensor, float]:
    on = Grid("on", tuple(weight.shape), weight.dtype, weight="weight", bits=bits)
    return _settle("weight", weight, on, channels)


# ---- rows of numbers


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_comes_back_from_its_largest_weight(bits: int, dtype: torch.dtype) -> None:
    """The proof in `quant.snap`, on a million rows of one number each: every exponent, every kind of mantissa."""
    top = LARGEST_WEIGHT[bits]
    mantissa = torch.cat([torch.rand(1_000_000, dtype=dtype) + 1, 1 + torch.arange(4096, dtype=dtype) * 2.0**-12])
    largest = torch.ldexp(mantissa, torch.randint(-100, 120, mantissa.shape))
    scale = largest / top
    assert torch.equal(scale * top / top, scale)
    assert not torch.equal(scale * top, largest), "the largest weight itself does move: the scale is what stays"


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_snapping_is_idempotent_and_moves_no_integer(bits: int, dtype: torch.dtype) -> None:
    weight = torch.randn(20_000, 16, dtype=dtype) * torch.exp2(torch.randint(-60, 60, (20_000, 1)))
    weight[::1000] = 0.0
    codes, scale = weight_grid(weight, bits)
    snapped, moved = settled(weight, bits)
    assert moved == 0.0
    assert torch.equal(snapped, codes * scale[:, None])
    again, same = weight_grid(snapped, bits)
    assert torch.equal(again, codes)
    assert torch.equal(same, scale)


@pytest.mark.parametrize("bits", [8, 16])
def test_denormal_rows_settle(bits: int) -> None:
    smallest = 2.0**-149
    weight = torch.randn(50_000, 8) * torch.exp2(torch.rand(50_000, 1) * 30) * smallest
    weight = torch.cat([weight, torch.arange(4000.0)[:, None].expand(-1, 8) * smallest])
    first, _ = weight_grid(weight, bits)
    snapped, _ = settled(weight, bits)
    codes, scale = weight_grid(snapped, bits)
    assert torch.equal(codes * scale[:, None], snapped)
    assert not torch.equal(codes, first), "denormal scales are why there is more than one round"
    assert codes.any()


def test_scales_per_channel_settle() -> None:
    """Integers are those of the weight times the scales of its input; scales of rows move by a few roundings."""
    weight, channels = torch.randn(5000, 48), torch.rand(48) * 3 + 1e-3
    snapped, moved = settled(weight, 8, channels)
    assert not torch.equal(snapped, weight)
    assert 0.0 < moved < 1e-5
    codes, scale = weight_grid(snapped * channels, 8)
    assert torch.equal(codes, weight_grid(weight * channels, 8)[0])
    assert torch.equal(codes * scale[:, None] / channels, snapped)
    again, still = settled(snapped, 8, channels)
    assert torch.equal(again, snapped)
    assert still == 0.0


# ---- networks


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", [VIT, BERT, GPT2, LLAMA])
def test_a_snapped_network_computes_the_same_and_comes_back_from_its_folder(
    name: str, bits: int, tmp_path: Path
) -> None:
    qann, batch = make(name, weight_bits=bits)
    before, expected = state(qann), quantized(qann.frozen(), qann.prepare(batch))[1]
    assert spikezip.snap(qann) == 0.0
    codes = quantized(qann.frozen(), qann.prepare(batch))[1]
    assert all(torch.equal(codes[site], expected[site]) for site in qann.sites)
    after = state(qann)
    moved = {key for key, tensor in after.items() if not torch.equal(tensor, before[key])}
    assert moved == set(grids(qann)), "weights on a grid move, all others stay"
    assert snap(qann) == 0.0
    assert all(torch.equal(tensor, after[key]) for key, tensor in qann.state_dict().items())

    spikezip.save(qann, tmp_path)
    back = spikezip.load(tmp_path)
    assert type(back) is type(qann)
    assert equal_states(back, qann)
    assert equal_states(spikezip.convert(back), spikezip.convert(qann))
    stored, packed = load_file(tmp_path / "model.safetensors"), packed_in(tmp_path)
    assert set(packed) == moved
    assert {stored[f"{key}.codes"].dtype for key in packed} == {torch.int8 if bits == 8 else torch.int16}
    assert not set(packed) & set(stored)
    floats = [key for key, tensor in stored.items() if tensor.ndim > 1 and tensor.is_floating_point()]
    assert all("embeddings" in key for key in floats), "position and class tokens of an image are in no product"


def test_scales_per_channel_are_stored_compactly(tmp_path: Path) -> None:
    qann, batch = make(BERT, sites={"*.LayerNorm": spikezip.SiteConfig(per_channel=True)})
    assert 0.0 <= snap(qann) < 1e-5
    spikezip.save(qann, tmp_path / "qann")
    assert packed_in(tmp_path / "qann")["bert.encoder.layer.1.attention.self.query.weight"] == {
        "bits": 8,
        "dim": 0,
        "input_scale": "bert.encoder.layer.0.output.LayerNorm.site_scale",
    }
    back = spikezip.load(tmp_path / "qann")
    assert equal_states(back, qann)
    snn = spikezip.convert(back)
    assert spikezip.verify(qann, snn, [batch]).exact
    spikezip.save(snn, tmp_path / "snn")
    assert equal_states(spikezip.load(tmp_path / "snn"), snn)


def test_a_tied_table_is_packed_once(tmp_path: Path) -> None:
    qann, batch = make(GPT2)
    snap(qann)
    spikezip.save(qann, tmp_path / "qann")
    tables = [key for key in load_file(tmp_path / "qann" / "model.safetensors") if "wte" in key or "lm_head" in key]
    assert sorted(tables) == ["lm_head.weight.codes", "lm_head.weight.scale"]
    spikezip.save(spikezip.convert(qann), tmp_path / "snn")
    for kind in ("qann", "snn"):
        with torch.no_grad():
            assert torch.equal(spikezip.load(tmp_path / kind)(**batch).logits, qann(**batch).logits)


def test_transposed_weights_have_their_scales_in_the_other_dimension(tmp_path: Path) -> None:
    """The layers of GPT-2 hold `[in, out]`; their grid is that of what the product reads, also per channel."""
    for sites in ({}, {"h.*.ln_1": spikezip.SiteConfig(per_channel=True)}):
        qann, _ = make(GPT2, sites=sites)
        snap(qann)
        spikezip.save(qann, tmp_path)
        how = packed_in(tmp_path)["transformer.h.1.attn.c_attn.weight"]
        behind = {"input_scale": "transformer.h.1.ln_1.site_scale"} if sites else {}
        assert how == {"bits": 8, "dim": 1, **behind}
        assert equal_states(spikezip.load(tmp_path), qann)


class Repeated(nn.Module):
    """A layer whose weights are used twice each: they stand on their grid more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 10))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.repeat(2, 1))


def test_weights_that_are_moved_before_their_product_are_snapped(tmp_path: Path) -> None:
    """A transposed convolution is a convolution with its weights flipped and transposed."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 6, 6)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, stride=2), Repeated())
    qann = spikezip.calibrate(spikezip.quantize(model, example=image), image).eval()
    before, expected = state(qann), qann(input=image)
    assert set(grids(qann)) == {"0.weight", "2.weight"}
    assert snap(qann) == 0.0
    assert torch.equal(qann(input=image), expected)
    assert torch.equal(qann.state_dict()["3.weight"], before["3.weight"])
    spikezip.save(qann, tmp_path)
    assert packed_in(tmp_path) == {"0.weight": {"bits": 8, "dim": 0}, "2.weight": {"bits": 8, "dim": 1}}
    assert equal_states(spikezip.load(tmp_path), qann)


def test_a_table_that_is_read_as_floats_stays_as_it_is(tmp_path: Path) -> None:
    qann, _ = make(GPT2, embedding_bits=None)
    (table,) = {"lm_head.weight", "transformer.wte.weight"} & set(qann.keys)
    before = state(qann)
    assert table not in grids(qann)
    snap(qann)
    assert torch.equal(qann.state_dict()[table], before[table])
    spikezip.save(qann, tmp_path)
    assert table not in packed_in(tmp_path)
    assert equal_states(spikezip.load(tmp_path), qann)


def test_a_tied_table_behind_a_scale_per_channel_has_two_grids(tmp_path: Path) -> None:
    """The output layer's integers are those of the table times the scales of its input: nothing can be shared."""
    qann, batch = make(GPT2, sites={"ln_f": spikezip.SiteConfig(per_channel=True)})
    snap(qann)
    assert not {"lm_head.weight", "transformer.wte.weight"} & set(grids(qann))
    spikezip.save(qann, tmp_path / "qann")
    back = spikezip.load(tmp_path / "qann")
    assert equal_states(back, qann)
    spikezip.save(spikezip.convert(back), tmp_path / "snn")
    certificate = spikezip.verify(back, spikezip.load(tmp_path / "snn"), [batch])
    assert certificate.exact, str(certificate)


def test_what_is_not_on_its_grid_is_stored_in_floats(tmp_path: Path) -> None:
    qann, _ = make(BERT)
    spikezip.save(qann, tmp_path)
    assert packed_in(tmp_path) == {}
    snap(qann)
    with torch.no_grad():
        qann.get_parameter("classifier.weight")[0, 0] += 1e-4
    spikezip.save(qann, tmp_path)
    assert set(packed_in(tmp_path)) == set(grids(qann)) - {"classifier.weight"}
    assert equal_states(spikezip.load(tmp_path), qann)


def test_tables_alone_can_be_snapped() -> None:
    qann, _ = make(BERT, weight_bits=None, embedding_bits=8)
    before = state(qann)
    assert snap(qann) == 0.0
    moved = {key for key, tensor in qann.state_dict().items() if not torch.equal(tensor, before[key])}
    assert moved == {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")}


def test_networks_without_a_grid_are_refused() -> None:
    qann, _ = make(BERT, weight_bits=None)
    with pytest.raises(spikezip.ConfigError, match="no weight lies on a grid: quantize with weight_bits=8"):
        snap(qann)
    broken, _ = make(VIT)
    for each in (float_model(VIT), spikezip.convert(broken)):
        with pytest.raises(spikezip.ConfigError, match=r"snap takes what spikezip\.quantize returns, not ViT"):
            snap(each)
    with torch.no_grad():
        broken.get_parameter("classifier.weight")[0, 0] = torch.inf
    with pytest.raises(spikezip.ConfigError, match=r"classifier\.weight holds values that are not finite"):
        snap(broken)


def test_a_compact_folder_is_small(tmp_path: Path) -> None:
    config = {**tiny_models.TEXT, "hidden_size": 128, "intermediate_size": 512, "vocab_size": 2000}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**config))
    quantized = spikezip.quantize(model, spikezip.QuantConfig(embedding_bits=8))
    qann = spikezip.calibrate(quantized, [tiny_models.inputs(model)], "quick")  # the default rounds weights already
    spikezip.save(qann, tmp_path / "float")
    snap(qann)
    spikezip.save(qann, tmp_path / "compact")
    spikezip.save(qann, tmp_path / "asked", compact=False)
    spikezip.save(spikezip.convert(qann), tmp_path / "snn")
    sizes = {kind.name: sum(f.stat().st_size for f in kind.iterdir()) for kind in tmp_path.iterdir()}
    assert sizes["compact"] < 0.3 * sizes["float"], sizes
    assert sizes["snn"] < 0.3 * sizes["float"], sizes
    assert sizes["asked"] >= 0.99 * sizes["float"], sizes
    assert equal_states(spikezip.load(tmp_path / "compact"), spikezip.load(tmp_path / "asked"))
