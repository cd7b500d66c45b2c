"""Where tokens are kept between runs."""

import os
from pathlib import Path


def token_cache() -> Path:
    """A folder of the user's cache; the environment variable SPIKEZIP_CACHE names another.

    Example:
        >>> token_cache().name
        'tokens'
    """
    home = os.environ.get("SPIKEZIP_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "spikezip")
    return Path(home).expanduser() / "tokens"
