"""A recipe, carried out: float stages, quantization, training on the grid, conversion, certificate."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, set_seed

from spikezip.data import open_data, takes
from spikezip.data.base import Data
from spikezip.data.reduction import add_reduction
from spikezip.engines import SpikingNetwork
from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.callbacks import Watcher
from spikezip.training.check import check_stages
from spikezip.training.conversion import convert_stage, finish_qann, quantize_stage
from spikezip.training.folder import RESULTS, RunFolder, versions, write_json
from spikezip.training.inputs import Inputs
from spikezip.training.models import make_model, with_relu
from spikezip.training.recipe import ModelSettings, Recipe, load_recipe
from spikezip.training.sharded import check_launcher
from spikezip.training.stage import folded, train_stage
from spikezip.training.work import Work

QAT = "qat"
# Processes wait for the first one while it tokenises and verifies; the usual ten minutes are too few for that.
PATIENCE = timedelta(hours=12)


@dataclass
class Trained:
    """What a run leaves: the quantized network (or the float one, if it was not quantized), the figures, the folder."""

    model: Any
    metrics: dict[str, Any]
    folder: Path
    snn: SpikingNetwork | None = None
    certificate: Certificate | None = None

    @property
    def qann(self) -> QuantizedNetwork:
        if not isinstance(self.model, QuantizedNetwork):
            raise ConfigError("the recipe has no quantize stage: the result is a float model, see .model")
        return self.model


def train(
    model: PreTrainedModel | QuantizedNetwork | str | None,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    data: Data | None = None,
    tokenizer: Any = None,
    output: str | Path | None = None,
    resume: bool = False,
    cpu: bool = False,
    progress: Watcher | None = None,
) -> Trained:
    """Carry out a recipe; returns the quantized network and its metrics.

    Args:
        model: a float model with its head, a quantized network (which skips the stages before `qat`), a folder or
            Hub name, or None for the model that the recipe names.
        recipe: a `Recipe`, its settings as a dict, or a YAML file.
        data: in place of the data that the recipe names.
        tokenizer: for a text model that has none beside it.
        output: the run folder; without it the recipe's, or `runs/` and its name.
        resume: go on where a run in that folder stopped.
        cpu: use the CPU even where there is a GPU.
        progress: called with a `Progress` as the run goes on.

    Example:
        >>> import tempfile, torch
        >>> from spikezip.data.images import Images
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> pixels, labels = torch.randint(0, 255, (32, 3, 8, 8), dtype=torch.uint8), torch.arange(32) % 2
        >>> split = Images(pixels, labels)
        >>> data = Data("noise", "images", ("a", "b"), split, split, split, note="", mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> vit = ViTForImageClassification(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        ...     intermediate_size=16, image_size=8, patch_size=4, hidden_act="relu"))
        >>> stages = {"quantize": {"batches": 1}, "qat": {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(vit, {"name": "try", "stages": stages}, data=data, output=f"{folder}/run", cpu=True)
        >>> result.metrics["qat"]["grid_agreement"]
        1.0
    """
    if isinstance(recipe, (str, Path)):
        recipe = load_recipe(recipe)
    elif isinstance(recipe, Mapping):
        recipe = Recipe.from_json(recipe)
    if isinstance(model, str):
        recipe, model = replace(recipe, model=ModelSettings(path=model, config=recipe.model.config)), None
    folder = Path(output or recipe.output or Path("runs", recipe.name))
    check_launcher(recipe.precision)
    state = PartialState(cpu=cpu, timeout=PATIENCE)
    if data is None:
        if recipe.data.name is None or recipe.data.source is None:
            raise ConfigError("no data: name it with data.name and data.source (--set data=FOLDER), or pass data=")
        options = dict(recipe.data.options)
        if recipe.data.image_size is not None and takes(recipe.data.name, "image_size"):
            options.setdefault("image_size", recipe.data.image_size)  # pictures are cut to size when they are read
        data = open_data(recipe.data.name, recipe.data.source, seed=0, limit=recipe.data.limit, **options)
    with state.main_process_first():  # the others find the folder begun
        held = RunFolder(folder, recipe, resume=resume or not state.is_main_process, writes=state.is_main_process)
    return _carry_out(Work(recipe, Inputs(data, tokenizer), held, state, cpu, progress), model)


def _carry_out(work: Work, given: Any) -> Trained:
    """All stages, in their order."""
    stages = work.recipe.stages
    set_seed(work.recipe.seed)
    model = make_model(work.recipe.model, work.inputs.data) if given is None else copy.deepcopy(given)
    work.inputs.prepare(model, work.recipe, work.state)
    if isinstance(model, QuantizedNetwork):
        asked = stages.quantize.quant_config() if stages.quantize is not None else model.quant_config
        if asked != model.quant_config:
            raise ConfigError(
                f"the network is quantized, as {model.quant_config.to_json()}, but stages.quantize asks for "
                f"{asked.to_json()}; start from the float model, or set quantize=null"
            )
        stages = replace(stages, finetune=None, relu=None, quantize=None)  # it has them behind it
    trained_head = given is not None or not getattr(model, "has_new_head", work.recipe.model.path is None)
    check_stages(work, model, trained_head)
    teacher: Any = None
    if not isinstance(model, QuantizedNetwork):
        channels = work.inputs.other_channels(model)
        for name, settings in (("finetune", stages.finetune), ("relu", stages.relu)):
            if settings is None:
                continue
            before = model if trained_head and channels is None else None
            start = with_relu(model) if name == "relu" else model
            if channels is not None:
                add_reduction(start, channels)
            model = train_stage(work, name, start, settings, before)
            trained_head, channels = True, None
        if channels is not None:
            add_reduction(model, channels)
            model = folded(model)
        teacher = copy.deepcopy(model) if trained_head else None
    if stages.quantize is not None:
        model = quantize_stage(work, model)
    if stages.qat is not None:
        model = train_stage(work, QAT, model, stages.qat, teacher)
    result = Trained(model, work.metrics, work.folder.path)
    if isinstance(model, QuantizedNetwork):
        finish_qann(work, model)
    if stages.convert is not None:
        result.snn, result.certificate = convert_stage(work, model)
    _write_results(work)
    return result


def _write_results(work: Work) -> None:
    if work.state.is_main_process:
        figures = {
            "recipe": work.recipe.name,
            "note": work.recipe.note,
            "seed": work.recipe.seed,
            "data": {"name": work.inputs.data.name, "note": work.inputs.data.note},
            "metrics": json.loads(json.dumps(work.metrics)),
            "expected": [e.to_json() for e in work.recipe.expected],
            "versions": versions(),
        }
        write_json(work.folder.path / RESULTS, figures)
    work.state.wait_for_everyone()
