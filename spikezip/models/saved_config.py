"""`config.json` of a saved network, so that transformers loads it with spikezip and refuses it without.

Its `model_type` is `spikezip`, which transformers alone does not know: auto classes and pipelines say so and stop. The
float model's own configuration stands inside. A class of transformers that is asked to load the folder by name ignores
the model type; it stops at a quantization method that it cannot read, before it would make up random weights.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from spikezip.errors import CheckpointError

MODEL_TYPE = "spikezip"
# Without a `quant_method` transformers stops; with one that it does not know, it would go on with random weights.
_STOP = {"note": "a network of spikezip: load it with spikezip.load, or import spikezip and use an auto class"}


class SpikezipConfig(PreTrainedConfig):
    """What `config.json` of a saved network holds: its kind, and the configuration of the float model."""

    model_type = MODEL_TYPE

    def __init__(self, network: str = "", float_config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.network, self.float_config = network, float_config or {}


def files_beside(network: Any) -> dict[str, bytes]:
    """The files that a saved `PreTrainedModel` has beside program and tensors: name → content."""
    saved = {
        "model_type": MODEL_TYPE,
        "architectures": [network.original_class.__name__],
        "network": network.kind,
        # A class of transformers takes the inner configuration if it is of its own type.
        "float_config": {**network.config.to_dict(), "quantization_config": _STOP},
        "quantization_config": _STOP,
    }
    files = {"config.json": _json(saved)}
    generation = getattr(network, "generation_config", None)
    if generation is not None:
        files["generation_config.json"] = generation.to_json_string().encode()
    return files


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True, default=str) + "\n").encode()


def original_of(saved: dict[str, Any]) -> tuple[PreTrainedConfig, type[PreTrainedModel]] | None:
    """The float model's configuration and class from the content of `config.json`; None if transformers has neither.

    The names come from a file: only classes that transformers itself holds are looked up.
    """
    config, names = dict(saved.get("float_config") or {}), saved.get("architectures") or [""]
    config.pop("quantization_config", None)
    found: Any = getattr(transformers, str(names[0]), None) if str(names[0]).isidentifier() else None
    is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
    if not is_model or found.config_class is None:
        return None
    return found.config_class.from_dict(config), found


def load_pretrained(folder: str | Path, **kwargs: Any) -> Any:
    """The network in a folder (or on the Hub), as a `PreTrainedModel`."""
    path = Path(folder)
    if not path.is_dir():
        from huggingface_hub import snapshot_download

        wanted = {k: kwargs[k] for k in ("revision", "cache_dir", "token", "local_files_only") if kwargs.get(k)}
        path = Path(snapshot_download(str(folder), **wanted))
    network = pretrained_from(importlib.import_module("spikezip.files").load(path), path)
    if not isinstance(network, PreTrainedModel):
        raise CheckpointError(f"{folder}: transformers has no class for this network; use spikezip.load")
    return network


def pretrained_from(network: Any, folder: Path) -> Any:
    """The network of a folder as a `PreTrainedModel`; as it is if transformers has no class for it."""
    from spikezip.models.huggingface import as_pretrained  # it writes these files

    original = original_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    if original is None:
        return network
    generation = folder / "generation_config.json"
    settings = transformers.GenerationConfig.from_pretrained(folder) if generation.is_file() else None
    return as_pretrained(network, *original, settings)


def register() -> None:
    """Let auto classes and pipelines of transformers load networks of spikezip. May be called again."""
    AutoConfig.register(MODEL_TYPE, SpikezipConfig, exist_ok=True)
    for auto in vars(modeling_auto).values():
        is_auto = isinstance(auto, type) and issubclass(auto, _BaseAutoModelClass)
        if is_auto and getattr(auto, "_model_mapping", None) is not None:
            auto.register(SpikezipConfig, _loader(auto), exist_ok=True)


def _loader(auto: Any) -> Any:
    """A class whose `from_pretrained` gives the saved network, if it is one that this auto class is for."""

    def from_pretrained(cls: Any, name: str | Path, *args: Any, **kwargs: Any) -> Any:
        network = load_pretrained(name, **kwargs)
        known = {name for value in auto._model_mapping._model_mapping.values() for name in _names(value)}
        if type(network).__name__ not in known:
            raise CheckpointError(f"{name} holds a {type(network).__name__}, which {auto.__name__} is not for")
        return network

    def _from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
        raise CheckpointError(
            f"{auto.__name__}.from_config: a configuration holds no network of spikezip, only the folder does; "
            "use from_pretrained. The configuration of the float model is config.float_config"
        )

    body = {
        "config_class": SpikezipConfig,
        "from_pretrained": classmethod(from_pretrained),
        "_from_config": classmethod(_from_config),
        "__module__": __name__,
    }
    return type("SpikezipNetwork", (PreTrainedModel,), body)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
