"""Saving and loading: bit-identical runs, folders that outlive renamed modules, clear errors for the rest."""

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file

import spikezip
from spikezip.simulate.outputs import primary

NAMES = ["ViTForImageClassification", "BertForSequenceClassification", "GPT2LMHeadModel", "LlamaModel"]
SHIPPED = Path(__file__).parent / "data"


def networks(name: str, **config: Any) -> tuple:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16, **config)), [batch]).eval()
    return qann, spikezip.convert(qann), batch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("saved")
    qann, snn, _ = networks("ViTForImageClassification")
    spikezip.save(qann, folder / "qann")
    spikezip.save(snn, folder / "snn")
    return folder / "qann", folder / "snn"


@pytest.mark.parametrize("bits", [8, 16, None])
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_network_runs_bit_identically(name: str, bits: int | None, tmp_path: Path) -> None:
    qann, snn, batch = networks(name, weight_bits=bits)
    qann.save_pretrained(tmp_path / "qann")
    snn.save_pretrained(tmp_path / "snn", max_shard_size="20KB")
    assert len(list((tmp_path / "snn").glob("*.safetensors"))) > 1, "large networks come in shards"
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".bin", ".pt", ".pkl")]
    before = torch.get_rng_state()
    again, back = spikezip.load(tmp_path / "snn"), spikezip.load(tmp_path / "qann")
    assert torch.equal(torch.get_rng_state(), before), "loading leaves the caller's dice alone"
    assert type(again).__name__ == name
    first, second = (spikezip.simulate(s, batch, 20, record=list(snn.neurons)) for s in (snn, again))
    assert torch.equal(first.logits_per_step, second.logits_per_step)
    for site, train in first.trains.items():
        assert torch.equal(train, second.trains[site])
    with torch.no_grad():
        assert torch.equal(primary(qann(**batch)), primary(back(**batch)))
    assert spikezip.verify(back, spikezip.convert(back), [batch]).mismatches == 0
    assert back.quant_config == qann.quant_config


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    qann, _, _ = networks("GPT2LMHeadModel")
    assert qann.lm_head.weight is qann.transformer.wte.weight
    spikezip.save(qann, tmp_path)
    assert sum("wte" in key or "lm_head.weight" in key for key in load_file(tmp_path / "model.safetensors")) == 1
    back = spikezip.load(tmp_path)
    assert back.lm_head.weight is back.transformer.wte.weight


@pytest.mark.parametrize("folder", sorted(p.name for p in SHIPPED.glob("dinov2-*") if p.is_dir()))
def test_folders_outlive_renamed_modules(folder: str) -> None:
    """DINOv2 saved under transformers 5.17 and under 5.22, which names its attention layers differently."""
    snn = spikezip.load(SHIPPED / folder)
    expected = load_file(SHIPPED / f"{folder}-run.safetensors")
    run = spikezip.simulate(snn, expected["pixel_values"], "equilibrium")
    # Another CPU may compute another last bit in LayerNorm; the network must be the same, not the machine.
    torch.testing.assert_close(run.logits, expected["logits"], rtol=0, atol=1e-4)


def test_names_on_disk_are_those_of_the_table(saved: tuple[Path, Path]) -> None:
    keys = set(load_file(saved[1] / "model.safetensors"))
    assert "layers.0.attention.q_proj.codes" in keys
    assert "layers.0.attention.sesa.p.scale" in keys
    assert not any(key.startswith("vit.") for key in keys)


def copy_of(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_truncated_file_is_named(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy_of(saved[1], tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(spikezip.CheckpointError, match=r"model\.safetensors was edited or cut short"):
        spikezip.load(folder)


def test_edited_files_are_named(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy_of(saved[1], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.0.attention.q_proj.codes"][0, 0] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(spikezip.CheckpointError, match="edited"):
        spikezip.load(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(spikezip.CheckpointError, match=r"config\.json"):
        spikezip.load(folder)


def test_an_edited_manifest_is_noticed(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy_of(saved[1], tmp_path)
    edit_json(folder / "spikezip.json", kind="qann")
    with pytest.raises(spikezip.CheckpointError, match="checksum"):
        spikezip.load(folder)
    (folder / "spikezip.json").write_text('{"format": "spik')
    with pytest.raises(spikezip.CheckpointError, match="damaged"):
        spikezip.load(folder)


def test_foreign_and_future_folders(saved: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(spikezip.CheckpointError, match="no folder"):
        spikezip.load(tmp_path / "nowhere")
    tiny_models.make("ViTModel").save_pretrained(tmp_path / "float")
    with pytest.raises(spikezip.CheckpointError, match=r"no spikezip\.json"):
        spikezip.load(tmp_path / "float")
    with pytest.raises(spikezip.ConfigError, match="did not save"):
        spikezip.save(spikezip.load(saved[1]), tmp_path / "float")
    folder = copy_of(saved[1], tmp_path)
    edit_json(folder / "spikezip.json", format_version=99)
    with pytest.raises(spikezip.CheckpointError, match="format version 99"):
        spikezip.load(folder)
    edit_json(folder / "spikezip.json", format="onnx")
    with pytest.raises(spikezip.CheckpointError, match="not a spikezip manifest"):
        spikezip.load(folder)
    (folder / "spikezip.json").write_text('{"format": "spikezip", "complete": false}')
    with pytest.raises(spikezip.CheckpointError, match="broke off"):
        spikezip.load(folder)


def test_a_missing_shard_is_named(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy_of(saved[1], tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(spikezip.CheckpointError, match=r"model\.safetensors is missing"):
        spikezip.load(folder)


def test_a_name_on_the_hub_is_fetched_and_loaded(
    saved: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub's client is replaced by one that copies from a folder the files that were asked for."""

    def download(name: str, allow_patterns: list[str]) -> str:
        assert name == "someone/network"
        for file in saved[1].iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                (tmp_path / file.name).write_bytes(file.read_bytes())
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    batch = tiny_models.inputs(tiny_models.make("ViTForImageClassification"))
    expected = spikezip.load(saved[1])(**batch).logits
    assert torch.equal(spikezip.load("someone/network")(**batch).logits, expected)


def test_a_gathered_state_dict_is_saved(tmp_path: Path) -> None:
    qann, _, _ = networks("ViTForImageClassification")
    gathered = {k: v.clone() for k, v in qann.state_dict().items()}
    gathered["classifier.bias"] += 1.0
    qann.save_pretrained(tmp_path, state_dict=gathered)
    for key, tensor in spikezip.load(tmp_path).state_dict().items():
        assert torch.equal(tensor, gathered[key]), key


def test_only_networks_of_ours_are_saved(tmp_path: Path) -> None:
    with pytest.raises(spikezip.ConfigError, match="quantized or a spiking network"):
        spikezip.save(tiny_models.make("ViTModel"), tmp_path)


def test_saving_again_removes_a_certificate_of_another_network(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy_of(saved[1], tmp_path)
    qann, snn, batch = networks("ViTForImageClassification")
    path = spikezip.verify(qann, snn, [batch]).save(folder)
    assert spikezip.Certificate.from_json(path.read_text()).exact
    spikezip.save(snn, folder)
    assert not path.exists()
