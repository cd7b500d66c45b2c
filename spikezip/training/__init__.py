"""Training: from a pretrained float model to a QANN that keeps its accuracy, on transformers' Trainer."""

from spikezip.training.callbacks import InterruptedRunError, Progress
from spikezip.training.finite import DivergedError
from spikezip.training.optimizer import keep_scales_positive
from spikezip.training.recipe import Recipe, load_recipe
from spikezip.training.run import Trained, train

__all__ = [
    "DivergedError",
    "InterruptedRunError",
    "Progress",
    "Recipe",
    "Trained",
    "keep_scales_positive",
    "load_recipe",
    "train",
]
