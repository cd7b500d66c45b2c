"""The errors a user can meet. Each message names the thing that is wrong and what to do about it."""

from typing import Any


class SpikezipError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(SpikezipError, ValueError):
    """A setting that cannot work: wrong levels, an unknown engine, zero steps."""


class CoverageError(SpikezipError):
    """A network that cannot be quantized: the first line says why. `coverage` lists what is known of it."""

    coverage: Any = None


class CalibrationError(SpikezipError, RuntimeError):
    """A site has no scale yet."""


class InputError(SpikezipError, ValueError):
    """A batch that cannot be run: empty, not finite, of unequal sizes."""


class CheckpointError(SpikezipError, ValueError):
    """A folder that is not a spikezip checkpoint, or a damaged one."""
