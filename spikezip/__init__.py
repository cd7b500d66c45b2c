"""spikezip: turn a pretrained transformer into a spiking network that computes exactly the same function.

float model ──quantize──▶ QANN ──calibrate──▶ QANN ──convert──▶ SNN ──simulate──▶ run
                                                                 └─ verify · save · load
"""

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
from spikezip.measure import Certificate, verify
from spikezip.models import Coverage, coverage
from spikezip.quant import QuantConfig, SiteConfig, calibrate, quantize
from spikezip.simulate import Run, simulate
from spikezip.version import __version__

__all__ = [
    "CalibrationError",
    "Certificate",
    "CheckpointError",
    "ConfigError",
    "Coverage",
    "CoverageError",
    "InputError",
    "QuantConfig",
    "Run",
    "SiteConfig",
    "SpikezipError",
    "__version__",
    "calibrate",
    "convert",
    "coverage",
    "load",
    "quantize",
    "save",
    "simulate",
    "verify",
]
