"""The folder format: which files, which fields, which names tensors have."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

FORMAT = "spikezip"
FORMAT_VERSION = 1
MANIFEST = "spikezip.json"
CONFIG = "config.json"
CERTIFICATE = "certificate.json"


def canonical_keys(model: nn.Module, canonical: dict[str, str]) -> dict[str, str]:
    """Tensor name in the installed version of transformers → tensor name on disk, which outlives renamed modules."""
    return {key: _canonical_key(key, canonical) for key in model.state_dict()}


def _canonical_key(key: str, canonical: dict[str, str]) -> str:
    module = key
    while "." in module:
        module = module.rpartition(".")[0]
        if module in canonical:  # sites are children of modules that the table knows
            return canonical[module] + key[len(module) :]
    return key


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 over the manifest's own content, the checksum field left out."""
    content = {k: v for k, v in manifest.items() if k != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
