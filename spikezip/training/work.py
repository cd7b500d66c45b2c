"""What all stages of a run share: its recipe, inputs, folder and figures, and whoever watches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from spikezip.engines import SpikingNetwork
from spikezip.files import save
from spikezip.models.saved_config import files_beside, load_pretrained
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.callbacks import Progress, Watcher
from spikezip.training.folder import RunFolder
from spikezip.training.inputs import Inputs
from spikezip.training.recipe import Recipe

MODEL = "model"


@dataclass
class Work:
    """A run under way."""

    recipe: Recipe
    inputs: Inputs
    folder: RunFolder
    state: PartialState
    cpu: bool = False
    watcher: Watcher | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def tell(self, stage: str, done: int, total: int, **numbers: float) -> None:
        if self.watcher is not None and self.state.is_main_process:
            self.watcher(Progress(stage, done, total, numbers))

    def finish(self, stage: str, metrics: dict[str, Any]) -> None:
        """The figures of a stage, which is done with them."""
        self.folder.finish(stage, metrics)
        self.metrics[stage] = metrics
        self.state.wait_for_everyone()

    def save(self, model: Any, folder: Path, compact: bool = False) -> None:
        """Write a network with what lies beside it; only the first process does."""
        if not self.state.is_main_process:
            return
        if isinstance(model, (QuantizedNetwork, SpikingNetwork)):
            save(model, folder, compact=compact, extra=files_beside(model))
        else:
            model.save_pretrained(folder)
        self.inputs.save_beside(folder)

    def load_stage(self, name: str, like: Any) -> Any:
        """The network of a stage that is finished."""
        folder = self.folder.stage(name) / MODEL
        if name == "quantize" or isinstance(like, QuantizedNetwork):
            return load_pretrained(folder).to(like.device)
        return type(like).from_pretrained(folder, dtype=torch.float32).to(like.device)
