"""Packages that only pictures need, imported when a picture is asked for."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spikezip.errors import ConfigError

INSTALL = "pip install 'spikezip[show]'"


def need(module: str) -> Any:
    """Import a module of the extra `show`, or say how to get it.

    Example:
        >>> need("matplotlib.figure").__name__
        'matplotlib.figure'
        >>> need("no_such_package.figure")
        Traceback (most recent call last):
        spikezip.errors.ConfigError: pictures need no_such_package: pip install 'spikezip[show]'
    """
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise ConfigError(f"pictures need {package}: {INSTALL}")
    return import_module(module)
