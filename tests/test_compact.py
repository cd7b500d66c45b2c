"""Snapped weights and compact folders: the same integers, the same scales, a quarter of the space."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import spikezip
from spikezip.checkpoint.format import checksum, digest
from spikezip.ops.grid import weight_grid
from spikezip.ops.grid.reference import LARGEST_WEIGHT
from spikezip.quant.compact import Grid, decode, encode, grids, is_snapped, settle, snap
from spikezip.simulate.outputs import primary

NAMES = ["ViTForImageClassification", "BertForSequenceClassification", "GPT2LMHeadModel", "LlamaForCausalLM"]
BY_CHANNEL = {"*.LayerNorm": spikezip.SiteConfig(per_channel=True)}


def network(name: str, **config: Any) -> tuple[Any, dict[str, Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    settings = {"levels": 16, "embedding_bits": None if "ViT" in name else config.get("weight_bits", 8), **config}
    return spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(**settings)), [batch]).eval(), batch


def equal_states(a: Any, b: Any) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_comes_back_from_its_largest_weight(bits: int, dtype: torch.dtype) -> None:
    """The proof in `quant.compact`, on a million rows of one number each: every exponent, every kind of mantissa."""
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
    snapped = settle("weight", weight, Grid(bits), None)[0]
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
    snapped = settle("weight", weight, Grid(bits), None)[0]
    codes, scale = weight_grid(snapped, bits)
    assert torch.equal(codes * scale[:, None], snapped)
    assert not torch.equal(codes, first), "denormal scales are why there is more than one round"
    assert codes.any()


def test_scales_per_channel_settle() -> None:
    on = Grid(8, 0, "scale")
    weight, scale = torch.randn(5000, 48), torch.rand(48) * 3 + 1e-3
    assert not is_snapped(weight, on, scale)
    snapped, moved = settle("weight", weight, on, scale)
    assert 0.0 < moved < 1e-5
    assert is_snapped(snapped, on, scale)
    codes, row_scale = encode(snapped, on, scale)
    assert torch.equal(codes, encode(weight, on, scale)[0])
    assert torch.equal(decode(codes.to(torch.int8), row_scale, on, scale), snapped)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", NAMES)
def test_snap_leaves_the_function_alone(name: str, bits: int) -> None:
    qann, batch = network(name, weight_bits=bits)
    before = {k: v.clone() for k, v in qann.state_dict().items()}
    with torch.no_grad():
        expected = primary(qann(**batch))
        assert snap(qann) == 0.0
        assert torch.equal(primary(qann(**batch)), expected)
    moved = {key for key, value in qann.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == set(grids(qann)), "weights on a grid move, all others stay"
    snapped = {k: v.clone() for k, v in qann.state_dict().items()}
    assert snap(qann) == 0.0
    assert all(torch.equal(value, snapped[key]) for key, value in qann.state_dict().items())


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", NAMES)
def test_a_compact_folder_gives_the_network_back(name: str, bits: int, tmp_path: Path) -> None:
    qann, batch = network(name, weight_bits=bits)
    snap(qann)
    qann.save_pretrained(tmp_path / "qann", compact=True)
    back = spikezip.load(tmp_path / "qann")
    assert equal_states(back, qann)
    snn = spikezip.convert(back)
    assert equal_states(snn, spikezip.convert(qann))
    certificate = spikezip.verify(back, snn, [batch])
    assert certificate.exact, str(certificate)
    stored = load_file(tmp_path / "qann" / "model.safetensors")
    packed = json.loads((tmp_path / "qann" / "spikezip.json").read_text())["packed"]
    assert {stored[f"{key}.codes"].dtype for key in packed} == {torch.int8 if bits == 8 else torch.int16}
    assert not set(packed) & set(stored)
    assert (
        not [key for key, tensor in stored.items() if tensor.ndim > 1 and tensor.is_floating_point()] or "ViT" in name
    )


def test_scales_per_channel_are_stored_compactly(tmp_path: Path) -> None:
    qann, batch = network("BertForSequenceClassification", sites=BY_CHANNEL)
    assert 0.0 <= snap(qann) < 1e-5
    spikezip.save(qann, tmp_path, compact=True)
    packed = json.loads((tmp_path / "spikezip.json").read_text())["packed"]
    assert packed["encoder.layer.1.attention.self.query.weight"] == {
        "bits": 8,
        "dim": 0,
        "input_scale": "encoder.layer.0.output.LayerNorm.site_out.scale",
    }
    back = spikezip.load(tmp_path)
    assert equal_states(back, qann)
    snn = spikezip.convert(back)
    assert spikezip.verify(qann, snn, [batch]).exact
    spikezip.save(snn, tmp_path / "snn")
    assert equal_states(spikezip.load(tmp_path / "snn"), snn)


def test_a_tied_table_is_packed_once_and_stays_tied(tmp_path: Path) -> None:
    qann, _ = network("GPT2LMHeadModel")
    snap(qann)
    spikezip.save(qann, tmp_path / "qann", compact=True)
    spikezip.save(spikezip.convert(qann), tmp_path / "snn")
    for kind in ("qann", "snn"):
        stored = load_file(tmp_path / kind / "model.safetensors")
        assert sum(key.startswith(("wte", "lm_head")) and key.endswith("codes") for key in stored) == 1
    back = spikezip.load(tmp_path / "qann")
    assert back.lm_head.weight is back.transformer.wte.weight
    again = spikezip.load(tmp_path / "snn")
    assert again.lm_head.codes is again.transformer.wte.codes


def test_a_table_that_is_read_as_floats_stays_as_it_is(tmp_path: Path) -> None:
    qann, batch = network("GPT2LMHeadModel", embedding_bits=None)
    table = qann.transformer.wte.weight.detach().clone()
    with torch.no_grad():
        expected = primary(qann(**batch))
        snap(qann)
        assert torch.equal(primary(qann(**batch)), expected)
    assert torch.equal(qann.transformer.wte.weight, table)
    spikezip.save(qann, tmp_path, compact=True)
    assert equal_states(spikezip.load(tmp_path), qann)


def test_a_tied_table_behind_a_scale_per_channel_has_two_grids(tmp_path: Path) -> None:
    """The output layer's integers are those of the table times the scales of its input: nothing can be shared."""
    sites = {"ln_f": spikezip.SiteConfig(per_channel=True)}
    qann, batch = network("GPT2LMHeadModel", sites=sites)
    snap(qann)
    assert not {"transformer.wte.weight", "lm_head.weight"} & set(grids(qann))
    spikezip.save(qann, tmp_path / "qann", compact=True)
    back = spikezip.load(tmp_path / "qann")
    assert equal_states(back, qann)
    snn = spikezip.convert(back)
    assert not torch.equal(snn.transformer.wte.codes, snn.lm_head.codes)
    spikezip.save(snn, tmp_path / "snn")
    certificate = spikezip.verify(back, spikezip.load(tmp_path / "snn"), [batch])
    assert certificate.exact, str(certificate)


def test_a_gathered_state_dict_is_packed(tmp_path: Path) -> None:
    qann, _ = network("BertForSequenceClassification")
    snap(qann)
    gathered = {k: v.clone() for k, v in qann.state_dict().items()}
    gathered["classifier.bias"] += 1.0
    qann.save_pretrained(tmp_path, state_dict=gathered, compact=True)
    for key, tensor in spikezip.load(tmp_path).state_dict().items():
        assert torch.equal(tensor, gathered[key]), key


def test_what_is_not_snapped_is_named_and_the_folder_left_alone(tmp_path: Path) -> None:
    qann, _ = network("BertForSequenceClassification")
    spikezip.save(qann, tmp_path)
    with pytest.raises(spikezip.ConfigError, match=r"word_embeddings\.weight is not on its grid; call .*snap"):
        spikezip.save(qann, tmp_path, compact=True)
    assert equal_states(spikezip.load(tmp_path), qann)
    snap(qann)
    with torch.no_grad():
        qann.classifier.weight[0, 0] += 1e-4
    with pytest.raises(spikezip.ConfigError, match=r"classifier\.weight is not on its grid"):
        spikezip.save(qann, tmp_path, compact=True)


def test_networks_without_a_grid_are_refused(tmp_path: Path) -> None:
    qann, _ = network("BertForSequenceClassification", weight_bits=None)
    with pytest.raises(spikezip.ConfigError, match="weight_bits=8"):
        snap(qann)
    with pytest.raises(spikezip.ConfigError, match="weight_bits=8"):
        spikezip.save(qann, tmp_path, compact=True)
    with pytest.raises(spikezip.ConfigError, match="snap takes what"):
        snap(tiny_models.make("ViTModel"))
    broken, _ = network("ViTForImageClassification")
    with torch.no_grad():
        broken.classifier.weight[0, 0] = torch.inf
    with pytest.raises(spikezip.ConfigError, match=r"classifier\.weight holds values that are not finite"):
        snap(broken)


def test_a_compact_folder_is_small(tmp_path: Path) -> None:
    config = {**tiny_models.TEXT, "hidden_size": 128, "intermediate_size": 512, "vocab_size": 2000}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**config))
    quantized = spikezip.quantize(model, spikezip.QuantConfig(embedding_bits=8))
    qann = spikezip.calibrate(quantized, [tiny_models.inputs(model)])
    snap(qann)
    spikezip.save(qann, tmp_path / "float")
    spikezip.save(qann, tmp_path / "compact", compact=True)
    spikezip.save(spikezip.convert(qann), tmp_path / "snn", compact=True)
    sizes = {kind.name: sum(f.stat().st_size for f in kind.iterdir()) for kind in tmp_path.iterdir()}
    assert sizes["compact"] < 0.3 * sizes["float"], sizes
    assert sizes["snn"] < 0.3 * sizes["float"], sizes
    assert equal_states(spikezip.load(tmp_path / "compact"), spikezip.load(tmp_path / "float"))


def rewrite(folder: Path, tensors: dict[str, Tensor], **changes: Any) -> None:
    """Change a folder as a program would that knows the format: checksums included."""
    save_file(tensors, folder / "model.safetensors")
    manifest = {**json.loads((folder / "spikezip.json").read_text()), **changes}
    manifest["files"]["model.safetensors"] = digest(folder / "model.safetensors")
    manifest["checksum"] = checksum(manifest)
    (folder / "spikezip.json").write_text(json.dumps(manifest))


def test_a_packed_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    qann, _ = network("ViTForImageClassification")
    snap(qann)
    spikezip.save(qann, tmp_path, compact=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.weight.scale"]
    rewrite(tmp_path, tensors)
    with pytest.raises(spikezip.CheckpointError, match=r"lacks the tensor classifier\.weight\.scale"):
        spikezip.load(tmp_path)


@pytest.mark.parametrize("kind", ["qann", "snn"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scale_is_read_with_a_dimension_or_without(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    qann, _ = network("ViTForImageClassification")
    saved = qann if kind == "qann" else spikezip.convert(qann)
    spikezip.save(saved, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    scales = [key for key, tensor in tensors.items() if tensor.numel() == 1]
    assert len(scales) >= len(qann.sites)
    rewrite(tmp_path, {key: tensor.view(shape) if key in scales else tensor for key, tensor in tensors.items()})
    assert equal_states(spikezip.load(tmp_path), saved)


def test_a_number_does_not_stand_for_a_vector(tmp_path: Path) -> None:
    qann, _ = network("ViTForImageClassification")
    spikezip.save(qann, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, {**tensors, "classifier.bias": tensors["classifier.bias"][:1].clone()})
    with pytest.raises(spikezip.CheckpointError, match=r"classifier\.bias"):
        spikezip.load(tmp_path)
