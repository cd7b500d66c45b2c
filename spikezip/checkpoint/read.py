"""Load a quantized or spiking network from a folder or from the Hub, or say what is wrong with it."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spikezip.checkpoint.format import CONFIG, FORMAT, FORMAT_VERSION, MANIFEST, canonical_keys, checksum, digest
from spikezip.checkpoint.locate import locate
from spikezip.checkpoint.pack import unpack
from spikezip.convert import build
from spikezip.errors import CheckpointError, SpikezipError
from spikezip.models.coverage import checked_plan
from spikezip.quant.config import QuantConfig
from spikezip.quant.model import QuantizedModel, adopt_model
from spikezip.quant.quantize import apply_plan
from spikezip.simulate.model import SpikingModel
from spikezip.spiking.neuron import Neuron


def load(name: str | Path) -> QuantizedModel | SpikingModel:
    """The network saved in a folder, or under a name on the Hub; in `eval()` mode, on the CPU. Example: see `save`."""
    folder = locate(name, ["*.json", "*.safetensors", "*.txt", "*.model"])
    manifest = _read_manifest(folder)
    tensors = _read_tensors(folder, manifest)
    model = _empty_network(folder, manifest)
    names = canonical_keys(model, model.canonical)
    unpack(tensors, manifest.get("packed", {}), str(folder))
    for key, owner in manifest["tied"].items():
        tensors[key] = tensors[owner]
    missing = sorted(set(names.values()) - set(tensors))
    foreign = sorted(set(tensors) - set(names.values()))
    if missing or foreign:
        raise CheckpointError(
            f"{folder} does not fit {manifest['model_class']}: "
            f"{len(missing)} tensors missing {missing[:3]}, {len(foreign)} unknown {foreign[:3]}"
        )
    for path, module in model.named_modules():
        if isinstance(module, Neuron):
            module.take_shape(tensors[names[f"{path}.scale"]])
    try:
        expected = model.state_dict()
        model.load_state_dict({key: _fit(tensors[name], expected[key]) for key, name in names.items()}, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{folder} does not fit {manifest['model_class']}: {error}") from None
    model.eval()
    return model


def _fit(tensor: Tensor, like: Tensor) -> Tensor:
    """A single number may be stored with a dimension or without: a site's scale was the one, and is the other."""
    single = tensor.numel() == like.numel() == 1 and max(tensor.ndim, like.ndim) == 1
    return tensor.view(like.shape) if single else tensor


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {MANIFEST}: it is not a spikezip checkpoint")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a spikezip manifest")
    if manifest.get("complete") is False:
        raise CheckpointError(f"{folder} is incomplete: its save broke off; save the network again")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {manifest.get('format_version')}, this spikezip reads {FORMAT_VERSION}; upgrade"
        )
    if manifest.get("checksum") != checksum(manifest):
        raise CheckpointError(f"{path} was edited or damaged: its checksum does not match")
    for name, expected in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; {path} lists it")
        if digest(file) != expected:
            raise CheckpointError(f"{file} was edited or cut short: its checksum does not match the one in {path.name}")
    return manifest


def _read_tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in manifest["files"]:
        if name.endswith(".safetensors"):
            try:
                tensors.update(load_file(folder / name))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{folder / name} is damaged: {error}") from None
    return tensors


def _empty_network(folder: Path, manifest: dict[str, Any]) -> QuantizedModel | SpikingModel:
    """A network of the right shape, its weights still to be filled in."""
    cls: Any = getattr(transformers, manifest["model_class"], None)
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise CheckpointError(
            f"{folder} holds a {manifest['model_class']}, which transformers {transformers.__version__} does not have"
        )
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        quantization = QuantConfig.from_json(manifest["quantization"])
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when the network was quantized
            model = _make(cls, settings).to(getattr(torch, manifest["dtype"]))
            plan = checked_plan(model)
            apply_plan(model, plan, quantization)
    except (json.JSONDecodeError, TypeError, ValueError, SpikezipError) as error:
        raise CheckpointError(f"{folder} cannot be rebuilt: {error}") from error
    qann = adopt_model(model, quantization, plan)
    return build(qann) if manifest["kind"] == "snn" else qann


def _make(cls: Any, settings: dict[str, Any]) -> Any:
    return cls(cls.config_class.from_dict(settings))
