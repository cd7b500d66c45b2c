"""Numbers: does the spiking network compute the same function, how soon, and at what cost?"""

from spikezip.measure.certificate import Certificate
from spikezip.measure.complexity import complexity
from spikezip.measure.document import Measurement
from spikezip.measure.energy import Energy, energy
from spikezip.measure.energy_model import EnergyModel
from spikezip.measure.exactness import verify
from spikezip.measure.exit_calibration import calibrate_exit, report_exit
from spikezip.measure.exit_rule import ExitRule
from spikezip.measure.exits import simulate_until_confident
from spikezip.measure.measuring import measure
from spikezip.measure.operations import operations, sites_to_record
from spikezip.measure.rows import Operations
from spikezip.measure.tuning import tune

__all__ = [
    "Certificate",
    "Energy",
    "EnergyModel",
    "ExitRule",
    "Measurement",
    "Operations",
    "calibrate_exit",
    "complexity",
    "energy",
    "measure",
    "operations",
    "report_exit",
    "simulate_until_confident",
    "sites_to_record",
    "tune",
    "verify",
]
