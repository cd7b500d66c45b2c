"""What can be found wrong before the first step: a mistake in the last stage must not cost the work of the first."""

import copy
import warnings
from typing import Any

from transformers import AutoConfig

from spikezip.data.reduction import add_reduction
from spikezip.errors import ConfigError
from spikezip.models.networks import quantize
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.depth import check_drop_path
from spikezip.training.models import with_relu
from spikezip.training.settings import TrainStage
from spikezip.training.stage import folded
from spikezip.training.trainer import share_batch
from spikezip.training.work import Work

EMBEDDING = "aten.embedding.default"
FLOATS = ("finetune", "relu")


def check_stages(work: Work, model: Any, trained_head: bool) -> None:
    """Refuse a recipe that cannot be carried out with this model and this data."""
    stages = work.recipe.stages
    quantized = isinstance(model, QuantizedNetwork)
    if not quantized and stages.quantize is None and (stages.qat or stages.convert):
        raise ConfigError("stages.qat and stages.convert need a quantized network: add a quantize stage")
    if work.recipe.precision == "bf16" and work.state.device.type == "cpu" and not work.cpu:
        raise ConfigError("precision bf16 needs a GPU, and there is none: --set precision=float32")
    can_teach = trained_head and not quantized
    for name in (*FLOATS, "qat"):
        settings: TrainStage | None = getattr(stages, name)
        if settings is None or (quantized and name != "qat"):
            continue
        _check_stage(work, name, settings, model, can_teach)
        can_teach = not quantized
    if not quantized and stages.quantize is not None:
        _try_quantizing(work, model)


def _check_stage(work: Work, name: str, settings: TrainStage, model: Any, can_teach: bool) -> None:
    try:
        share_batch(settings, len(work.inputs.data.train), work.state.num_processes)
        check_drop_path(model, settings.drop_path)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if settings.compile and name == "qat":
        raise ConfigError("qat.compile: compilers reorder sums, and codes would differ; leave it off")
    earlier = FLOATS[: FLOATS.index(name)] if name in FLOATS else FLOATS
    teacher = settings.distill.teacher if settings.distill is not None else None
    if teacher in FLOATS and (teacher not in earlier or getattr(work.recipe.stages, teacher) is None):
        raise ConfigError(f"{name}.distill.teacher: no stage {teacher} comes before {name} in this recipe")
    if teacher in FLOATS and isinstance(model, QuantizedNetwork):
        raise ConfigError(f"{name}.distill.teacher: the network is quantized already, so no stage {teacher} is run")
    if teacher not in (None, "previous", *FLOATS):
        _find_teacher(name, teacher)
    if teacher == "previous" and not can_teach:
        raise ConfigError(
            f"{name}.distill: the network before this stage cannot teach, its head is not trained on these classes "
            f"(or it is quantized already). Add a stage before it, name a teacher, or set {name}.distill=null"
        )


def _find_teacher(name: str, named: str | None) -> None:
    """Refuse a teacher that is not there; whether it fits the data is seen when it is loaded."""
    try:
        AutoConfig.from_pretrained(named)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{name}.distill.teacher: {named} has no readable config: {str(error).splitlines()[0]}; "
            f"--set {name}.distill.teacher=FOLDER names the folder of a trained network"
        ) from error


def _try_quantizing(work: Work, model: Any) -> None:
    """Whether the network can be captured and every setting has a site, seen on a copy."""
    assert work.recipe.stages.quantize is not None
    tried = with_relu(model) if work.recipe.stages.relu is not None else copy.deepcopy(model)
    channels = work.inputs.other_channels(model)
    if channels is not None:
        add_reduction(tried, channels)
        tried = folded(tried)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it is done in earnest
        config = work.recipe.stages.quantize.quant_config()
        qann = quantize(tried.eval(), config, work.inputs.example(tried.device))
    if config.embedding_bits is not None and not any(getattr(n, "op", "") == EMBEDDING for n in qann.program.nodes):
        raise ConfigError(
            f"embedding_bits={config.embedding_bits}: {type(model).__name__} has no embedding table; leave it None"
        )
