"""Save a quantized or spiking network as a folder of safetensors and JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from spikezip.adoption import own_class
from spikezip.checkpoint.format import (
    CERTIFICATE,
    CONFIG,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    canonical_keys,
    checksum,
    digest,
)
from spikezip.errors import ConfigError


def save(
    model: Any,
    folder: str | Path,
    *,
    max_shard_size: int | str = "5GB",
    state_dict: Mapping[str, torch.Tensor] | None = None,
    compact: bool = False,
    **ignored: Any,
) -> None:
    """Save a quantized or spiking network; `model.save_pretrained(folder)` does the same.

    The manifest comes last, so that a broken-off save is not taken for a whole one. `state_dict` stands for the
    network's own, where a trainer has gathered it. `compact=True` stores the weights of a quantized network as integers
    and scales, in a quarter of the space; `spikezip.quant.compact.snap` comes first. Those of a spiking network always
    are. Other arguments of `save_pretrained` are accepted where they cannot matter here and refused where they would.

    Example:
        >>> import spikezip, tempfile, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spikezip.save(spikezip.convert(qann), folder)
        ...     snn = spikezip.load(folder)
        >>> snn.kind
        'snn'
    """
    if not hasattr(model, "quant_config"):
        raise ConfigError(f"save takes a quantized or a spiking network, not {type(model).__name__}")
    unknown = set(ignored) - {"safe_serialization", "is_main_process", "push_to_hub", "token", "save_peft_format"}
    if unknown or ignored.get("push_to_hub") or ignored.get("safe_serialization") is False:
        raise ConfigError(f"save_pretrained does not take {', '.join(sorted(unknown)) or 'these settings'} here")
    if ignored.get("is_main_process") is False:
        return
    folder = Path(folder)
    if (folder / CONFIG).exists() and not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds a model that spikezip did not save; choose another folder")
    names = canonical_keys(model, model.canonical)
    tensors, tied = _gather(model.state_dict() if state_dict is None else state_dict, names)
    packed: dict[str, dict[str, Any]] = {}
    if compact and model.kind == "qann":
        from spikezip.checkpoint.pack import pack  # it needs the quantized layers, whose package imports this function

        packed = pack(model, tensors, names)

    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "complete": False}) + "\n", encoding="utf-8")
    for old in (*folder.glob("model*.safetensors"), folder / CERTIFICATE):
        old.unlink(missing_ok=True)
    plan = split_torch_state_dict_into_shards(
        tensors, max_shard_size=max_shard_size, filename_pattern="model{suffix}.safetensors"
    )
    for filename, keys in plan.filename_to_tensors.items():
        save_file({key: tensors[key] for key in keys}, folder / filename, metadata={"format": "pt"})
    config = model.config.to_dict()
    config["architectures"] = [own_class(model).__name__]
    for local in ("_attn_implementation", "_name_or_path"):  # the second may name a folder of this machine
        config.pop(local, None)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    files = [CONFIG, *sorted(plan.filename_to_tensors)]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "model_class": own_class(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "quantization": model.quant_config.to_json(),
        "tied": tied,
        **({"packed": packed} if packed else {}),
        "files": {name: digest(folder / name) for name in files},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    manifest["checksum"] = checksum(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _gather(
    state: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors by their name on disk, each once; and, for a tensor with several names, name → name it is under."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    owners: dict[tuple[int, torch.Size], str] = {}
    for key, tensor in state.items():
        owner = owners.setdefault((tensor.data_ptr(), tensor.shape), names[key])
        if owner != names[key] and tensor.numel():
            tied[names[key]] = owner
        else:
            tensors[names[key]] = tensor.detach().cpu().contiguous()
    return tensors, tied
