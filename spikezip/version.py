"""The version, and those of the libraries that results depend on."""

import platform
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """What computed a result. transformers is named where it is installed."""
    found = {"spikezip": __version__}
    for name in ("torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}
