"""Float model → quantized network (QANN): configuration, quantizer, placement, calibration."""

from spikezip.quant.calibrate import calibrate
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.quant.quantize import quantize
from spikezip.quant.site import Site

__all__ = ["QuantConfig", "Site", "SiteConfig", "calibrate", "quantize"]
