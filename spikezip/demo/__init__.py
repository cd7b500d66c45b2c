"""The demo: a trained network, a thousand images, and the whole method in one run."""

from spikezip.demo.bundle import CLASSES, load_images, load_qann, normalise
from spikezip.demo.show import run

__all__ = ["CLASSES", "load_images", "load_qann", "normalise", "run"]
