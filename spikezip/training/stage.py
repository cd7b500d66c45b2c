"""A training stage, `finetune`, `relu` or `qat`: from its settings to the network that it leaves."""

import copy
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from spikezip.data.reduction import fold_reduction, has_reduction
from spikezip.errors import ConfigError
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.callbacks import (
    InterruptedRunError,
    Journal,
    Reporter,
    SeedByProcess,
    StopOnSignal,
    dashboards,
)
from spikezip.training.compiled import compiled_blocks
from spikezip.training.cost import Cost, Meter
from spikezip.training.depth import dropping_paths
from spikezip.training.folder import METRICS
from spikezip.training.graphs import attention_without_waiting
from spikezip.training.models import make_model, rebuilt, set_dropout
from spikezip.training.recipe import ModelSettings
from spikezip.training.settings import TrainStage
from spikezip.training.trainer import StageTrainer, arguments_for
from spikezip.training.work import MODEL, Work


def train_stage(work: Work, name: str, model: Any, settings: TrainStage, previous: Any) -> Any:
    """Train a float or quantized network for a stage, or read what the stage left; returns the network.

    `previous` is the network before the stage, if it can teach.
    """
    data = work.inputs.data
    folder = work.folder.stage(name)
    finished = work.folder.done(name)
    if finished is not None:
        work.metrics[name] = finished
        return work.load_stage(name, model)
    teacher = _teacher(work, name, settings, previous)
    set_dropout(model, settings.dropout)
    arguments = arguments_for(
        settings,
        folder,
        len(data.train),
        processes=work.state.num_processes,
        seed=work.recipe.seed,
        precision=work.recipe.precision,
        workers=work.recipe.workers,
        cpu=work.cpu,
    )
    checkpoint = work.folder.checkpoint(name)
    stop, meter = StopOnSignal(), Meter(work.state.device, checkpoint)
    callbacks: list[Any] = [Journal(work.folder.path / METRICS, name), stop, SeedByProcess(), meter]
    boards = dashboards(folder / "tensorboard", f"{work.recipe.name}-{name}") if work.state.is_main_process else []
    callbacks += boards
    if work.watcher is not None:
        callbacks.append(Reporter(name, work.watcher))
    trainer = StageTrainer(
        model,
        settings,
        arguments,
        data.train,
        data.validation,
        classes=len(data.classes),
        pixels=work.inputs.pixels,
        teacher=teacher,
        callbacks=callbacks,
    )
    # Those that look at their masks wait for the GPU in every step, and cannot be recorded.
    waiting = attention_without_waiting(model, teacher)
    compiled = compiled_blocks(model, settings.compile)
    with stop.listening(), dropping_paths(model, settings.drop_path), waiting, compiled, meter:
        trainer.train(resume_from_checkpoint=checkpoint)
    for board in boards:  # closed by now: an evaluation after the end would open another
        trainer.remove_callback(board)
    if stop.anybody(work.state.device):
        raise InterruptedRunError(
            f"stopped in stage {name} at step {trainer.state.global_step} of {trainer.state.max_steps}; "
            f"saved in {folder}. --resume (resume=True) goes on from there"
        )
    ago = trainer.guard.diverged(finished=True) if trainer.guard is not None else 0
    if ago:
        trainer.stop_diverged(trainer.model, ago)
    return _finish(work, name, trainer, meter.whole())


def _teacher(work: Work, name: str, settings: TrainStage, previous: Any) -> Any:
    if settings.distill is None:
        return None
    named = settings.distill.teacher
    if named in ("finetune", "relu"):  # `check` saw to it that it is there
        return make_model(ModelSettings(path=str(work.folder.stage(named) / MODEL)), work.inputs.data)
    if named != "previous":
        teacher = make_model(ModelSettings(path=named), work.inputs.data)
        if getattr(teacher, "has_new_head", False):
            raise ConfigError(f"{name}.distill.teacher: {named} has no head for these classes")
        channels = work.inputs.other_channels(teacher)
        if channels is not None:
            raise ConfigError(
                f"{name}.distill.teacher: {named} takes {teacher.config.num_channels} channels, the data has {channels}"
            )
        return teacher
    return copy.deepcopy(previous)  # `check` saw to it that there is one


def _finish(work: Work, name: str, trainer: StageTrainer, cost: Cost) -> Any:
    data = work.inputs.data
    history = [entry for entry in trainer.state.log_history if "eval_accuracy" in entry]
    test = trainer.evaluate(eval_dataset=data.test, metric_key_prefix="test")
    metrics = {
        "accuracy": test["test_accuracy"],
        "loss": test["test_loss"],
        "validation_accuracy": history[-1]["eval_accuracy"] if history else None,
        "best_validation_accuracy": trainer.state.best_metric,
        "best_step": trainer.state.best_global_step,
        "steps": trainer.state.global_step,
        **cost.to_json(),
        "kept": trainer.stage.keep,
        "chosen_on_test": trainer.stage.keep == "best" and data.validation is data.test,
    }
    model = trainer.result()
    if isinstance(model, QuantizedNetwork):
        metrics["grid_agreement"] = test["test_grid_agreement"]
        metrics["smallest_scale"] = min(float(model.scale(name).detach().min()) for name in model.sites)
    if has_reduction(model):
        model = folded(model)
    work.save(model, work.folder.stage(name) / MODEL)
    if work.state.is_main_process:
        _keep_best(work.folder.stage(name), trainer.state.best_model_checkpoint)
        work.folder.discard_checkpoints(name, None)
    work.finish(name, metrics)
    return model.to("cpu") if work.state.num_processes > 1 and not isinstance(model, QuantizedNetwork) else model


def _keep_best(folder: Path, checkpoint: str | None) -> None:
    """The weights of the best evaluation, beside the network of the stage."""
    weights = Path(checkpoint) / "model.safetensors" if checkpoint else None
    if weights is not None and weights.is_file():
        target = folder / "best"
        target.mkdir(exist_ok=True)
        shutil.copyfile(weights, target / weights.name)


def folded(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its reduction folded, as it would be read from a file.

    Folding in place leaves parameters in another order and a weight in another memory layout. Then norms and
    convolutions differ in the last bit from those of a run that is resumed and reads the file.
    """
    fold_reduction(model)
    return rebuilt(model, {"num_channels": model.config.num_channels}, "number of channels")
