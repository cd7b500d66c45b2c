"""The errors a user can meet. Each message names the thing that is wrong and what to do about it."""


class SpikezipError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(SpikezipError, ValueError):
    """A setting that cannot work: wrong levels, an unknown engine, zero steps."""


class CoverageError(SpikezipError):
    """A model holds something that no rule covers; the message carries the coverage table."""


class CalibrationError(SpikezipError, RuntimeError):
    """A site has no scale yet."""


class InputError(SpikezipError, ValueError):
    """A batch that cannot be run: empty, not finite, of unequal sizes."""


class CheckpointError(SpikezipError, ValueError):
    """A folder that is not a spikezip checkpoint, or a damaged one."""
