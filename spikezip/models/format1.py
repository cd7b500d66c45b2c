"""Folders of the first format (spikezip 0.1) → quantized networks of this one.

There a network was a Hugging Face class with sites as children of its modules: `X.site_out` quantized the output of X,
`X.site_in` its input, `X.sesa.q` and so on the operands of its attention. Names on disk leave out the base model's
prefix, as ours do.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from spikezip.errors import CheckpointError
from spikezip.models.examples import example_inputs
from spikezip.ops import rounding
from spikezip.quant.config import QuantConfig
from spikezip.quant.network import QuantizedNetwork, quantize

MANIFEST = "spikezip.json"


@torch.no_grad()
def read_format1(folder: str | Path) -> QuantizedNetwork:
    """The quantized network in a folder of format 1: the same codes at every site, bit for bit."""
    folder = Path(folder)
    manifest = _manifest(folder)
    model = _float_model(folder, manifest)
    tensors = _tensors(folder, manifest)
    prefix = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    own = model.state_dict()
    for key in own:
        name = key.removeprefix(prefix)
        if name in tensors:
            own[key] = tensors[name].view_as(own[key])
    missing = [key for key in own if key.removeprefix(prefix) not in tensors and key not in _tied(manifest, prefix)]
    if missing:
        raise CheckpointError(f"{folder} lacks the tensor {missing[0]}")
    model.load_state_dict(own)
    model.tie_weights()
    qann = quantize(model, QuantConfig.from_json(manifest["quantization"]), example=example_inputs(model))
    scales = _scales(tensors)
    if set(scales) != set(qann.sites):
        odd = sorted(set(scales) ^ set(qann.sites))
        raise CheckpointError(f"{folder}: its sites are not those of this version; only one has {odd[:3]}")
    for site, scale in scales.items():
        qann.set_scale(site, scale)
    return qann.eval()


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read: {error}") from None
    if manifest.get("format") != "spikezip" or manifest.get("format_version") != 1 or manifest.get("kind") != "qann":
        raise CheckpointError(f"{folder} does not hold a quantized network in format 1")
    return manifest


def _float_model(folder: Path, manifest: dict[str, Any]) -> transformers.PreTrainedModel:
    """An empty model of the class that the manifest names, which must be one of transformers."""
    found = getattr(transformers, str(manifest.get("model_class")), None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise CheckpointError(f"{folder / MANIFEST}: {manifest.get('model_class')!r} is no model class of transformers")
    made_from: Any = found
    return made_from(made_from.config_class.from_json_file(folder / "config.json")).eval()


def _tied(manifest: dict[str, Any], prefix: str) -> set[str]:
    names = {*manifest.get("tied", {})}
    return {*names, *(prefix + name for name in names)}


def _tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors on disk; weights that were stored as integers are floats again."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no model.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(load_file(file))
    for name, packed in manifest.get("packed", {}).items():
        codes, scale = tensors.pop(f"{name}.codes"), tensors.pop(f"{name}.scale")
        matrix = codes.transpose(0, packed["dim"]).to(scale.dtype) * scale.view(-1, *[1] * (codes.ndim - 1))
        if packed.get("input_scale"):  # integers of the weight times the scale of each input channel
            matrix = matrix / rounding.representable(tensors[packed["input_scale"]])
        tensors[name] = matrix.transpose(0, packed["dim"])
    return tensors


def _scales(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Site → scale, by the names that sites have now."""
    found = {}
    for key, tensor in tensors.items():
        module, _, leaf = key.rpartition(".")
        owner, _, child = module.rpartition(".")
        if leaf != "scale":
            continue
        if child == "site_out":
            found[owner] = tensor
        elif child == "site_in":
            found[f"{owner}.in"] = tensor
        elif owner.endswith(".sesa"):
            found[f"{owner.removesuffix('.sesa')}.{child}"] = tensor
    return found
