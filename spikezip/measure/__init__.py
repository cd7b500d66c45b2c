"""Numbers: does the spiking network compute the same function?"""

from spikezip.measure.certificate import Certificate
from spikezip.measure.equivalence import verify

__all__ = ["Certificate", "verify"]
