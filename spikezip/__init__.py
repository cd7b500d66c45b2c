"""spikezip: turn a trained network into a spiking network that computes exactly the same function.

float model ──quantize──▶ QANN ──calibrate, train──▶ QANN ──convert──▶ SNN ──simulate──▶ run
                                                                 └─ verify · measure · tune · save · load
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spikezip.engines import Drive, Run, SpikingNetwork, simulate
from spikezip.errors import (
    CalibrationError,
    CheckpointError,
    ConfigError,
    CoverageError,
    InputError,
    SpikezipError,
)
from spikezip.measure import Certificate, Measurement, measure, tune, verify
from spikezip.models import convert, load, quantize, save
from spikezip.program.coverage import Coverage, coverage
from spikezip.quant import QuantConfig, QuantizedNetwork, SiteConfig, calibrate, snap
from spikezip.version import __version__

if TYPE_CHECKING:
    from spikezip.training.run import train

__all__ = [
    "CalibrationError",
    "Certificate",
    "CheckpointError",
    "ConfigError",
    "Coverage",
    "CoverageError",
    "Drive",
    "InputError",
    "Measurement",
    "QuantConfig",
    "QuantizedNetwork",
    "Run",
    "SiteConfig",
    "SpikezipError",
    "SpikingNetwork",
    "__version__",
    "calibrate",
    "convert",
    "coverage",
    "load",
    "measure",
    "quantize",
    "save",
    "simulate",
    "snap",
    "train",
    "tune",
    "verify",
]


if find_spec("transformers") is not None:
    # Auto classes and pipelines load networks of ours from here on; without, they would not know the model type.
    from spikezip.models.saved_config import register

    register()


def __getattr__(name: str) -> Any:
    """`spikezip.train` is imported when it is asked for: it needs accelerate, which the rest does not."""
    if name == "train":
        from spikezip.training.run import train

        return train
    raise AttributeError(f"module 'spikezip' has no attribute {name!r}")
