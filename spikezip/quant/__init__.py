"""The quantized network: settings, calibration, training pass, weights on their grid."""

from spikezip.quant.calibration import calibrate
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.snap import snap

__all__ = ["QuantConfig", "QuantizedNetwork", "SiteConfig", "calibrate", "snap"]
