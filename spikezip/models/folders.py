"""Networks by name: `save` and `load` with what belongs beside a Hugging Face network, and where a name leads."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spikezip import files
from spikezip.errors import CheckpointError

CONFIG = "config.json"
_OURS = (files.MANIFEST, files.PROGRAM, files.CERTIFICATE, CONFIG, "generation_config.json", "model*.safetensors")


def save(network: Any, folder: str | Path, *, compact: bool = True) -> None:
    """Save a quantized or a spiking network as a folder; `load` gives back the same program and the same bits.

    Args:
        network: what `quantize` or `convert` made.
        folder: is made, or the network in it is replaced at the very end; other files there stay.
        compact: store float weights as integers and scales where these give back the same bits (see `snap`).

    Example:
        >>> import tempfile, spikezip, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> qann = spikezip.calibrate(spikezip.quantize(model, example=torch.randn(2, 4)), torch.randn(2, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(spikezip.convert(qann), folder)
        ...     load(folder).kind
        'snn'
    """
    beside = None
    if hasattr(network, "original_class"):
        from spikezip.models.saved_config import files_beside  # needs transformers, as such a network does

        beside = files_beside(network)
    files.save(network, folder, compact=compact, extra=beside)


def load(name: str | Path) -> Any:
    """The network in a folder, or on the Hub, in `eval()`, on the CPU.

    A network that came from a Hugging Face model is a `PreTrainedModel` again if transformers is installed; it runs
    without. A damaged, edited or foreign folder is refused, and the error says why.
    """
    folder = locate(name, _OURS)
    network = files.load(folder)
    if not (folder / CONFIG).is_file() or find_spec("transformers") is None:
        return network
    from spikezip.models.saved_config import pretrained_from

    try:
        return pretrained_from(network, folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder / CONFIG} is damaged ({error}): save the network again") from error


def locate(name: str | Path, patterns: Sequence[str]) -> Path:
    """The folder called `name`; for a name on the Hub, a local copy of its files that match `patterns`.

    Example:
        >>> locate(".", ["*.json"])
        PosixPath('.')
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"{name} is a file; a folder or a name on the Hub is needed")
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(huggingface_hub.snapshot_download(str(name), allow_patterns=list(patterns)))
    except HFValidationError:
        raise CheckpointError(f"there is no folder {name}, and nothing on the Hub can have that name") from None
    except OSError as error:  # not there, no access, no connection: the Hub's errors are all of this kind
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{name} is neither a folder here nor reachable on the Hub: {reason}") from None
