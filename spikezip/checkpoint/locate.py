"""Where a model lies: a folder here, or the local copy of one on the Hub."""

from collections.abc import Sequence
from pathlib import Path

from spikezip.errors import CheckpointError


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
