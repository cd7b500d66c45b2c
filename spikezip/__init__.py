"""spikezip: turn a pretrained transformer into a spiking network that computes exactly the same function.

float model ──quantize──▶ QANN ──calibrate, train──▶ QANN ──convert──▶ SNN ──simulate──▶ run
                                                                 └─ verify · measure · tune · save · load
"""

from typing import TYPE_CHECKING, Any

from spikezip.checkpoint.read import load
from spikezip.checkpoint.write import save
from spikezip.convert import convert
from spikezip.errors import (
    CalibrationError,
    CheckpointError,
    ConfigError,
    CoverageError,
    InputError,
    SpikezipError,
)
from spikezip.measure import Certificate, Measurement, measure, tune, verify
from spikezip.models import Coverage, coverage
from spikezip.quant import QuantConfig, SiteConfig, calibrate, quantize
from spikezip.quant.compact import snap
from spikezip.simulate import Run, simulate
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
    "InputError",
    "Measurement",
    "QuantConfig",
    "Run",
    "SiteConfig",
    "SpikezipError",
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


def __getattr__(name: str) -> Any:
    """`spikezip.train` is imported when it is asked for: it needs accelerate, which the rest does not."""
    if name == "train":
        from spikezip.training.run import train

        return train
    raise AttributeError(f"module 'spikezip' has no attribute {name!r}")
