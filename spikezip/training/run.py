"""A recipe, carried out: float stages, quantization, training on the grid, conversion, certificate."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from spikezip.adoption import own_class
from spikezip.checkpoint.read import load
from spikezip.checkpoint.write import save
from spikezip.convert import convert
from spikezip.data import Pixels, open_data, takes, tokenize
from spikezip.data.base import IMAGES, TEXT, Data, Split
from spikezip.data.reduction import add_reduction, fold_reduction, has_reduction
from spikezip.data.tokens import positions
from spikezip.errors import ConfigError
from spikezip.measure.agreement import agreement
from spikezip.measure.certificate import Certificate
from spikezip.measure.equivalence import verify
from spikezip.measure.over_time import OverTime
from spikezip.quant.calibrate import calibrate
from spikezip.quant.compact import snap
from spikezip.quant.model import QuantizedModel
from spikezip.quant.quantize import quantize
from spikezip.simulate.model import SpikingModel
from spikezip.training.cache import token_cache
from spikezip.training.callbacks import (
    InterruptedRunError,
    Journal,
    Progress,
    Reporter,
    SeedByProcess,
    StopOnSignal,
    Watcher,
    dashboards,
    write_line,
)
from spikezip.training.depth import dropping_paths
from spikezip.training.folder import METRICS, RESULTS, RunFolder, versions, write_json
from spikezip.training.graphs import attention_without_waiting
from spikezip.training.models import find_pixels, find_tokenizer, make_model, rebuilt, set_dropout, with_relu
from spikezip.training.recipe import ModelSettings, Recipe, load_recipe
from spikezip.training.settings import TrainStage
from spikezip.training.sharded import check_launcher
from spikezip.training.trainer import StageTrainer, arguments_for

MODEL = "model"
QAT = "qat"
# Processes wait for the first one while it tokenises and verifies; the usual ten minutes are too few for that.
PATIENCE = timedelta(hours=12)


@dataclass
class Trained:
    """What a run leaves: the quantized network (or the float one, if it was not quantized), the figures, the folder."""

    model: Any
    metrics: dict[str, Any]
    folder: Path
    snn: SpikingModel | None = None
    certificate: Certificate | None = None

    @property
    def qann(self) -> QuantizedModel:
        if not isinstance(self.model, QuantizedModel):
            raise ConfigError("the recipe has no quantize stage: the result is a float model, see .model")
        return self.model


def train(
    model: PreTrainedModel | QuantizedModel | str | None,
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
        >>> import tempfile
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
    run = _Run(recipe, data, held, state, cpu, tokenizer, progress)
    return run.carry_out(model)


@dataclass
class _Run:
    recipe: Recipe
    data: Data
    folder: RunFolder
    state: PartialState
    cpu: bool
    tokenizer: Any = None
    watcher: Watcher | None = None
    pixels: Pixels | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def carry_out(self, given: Any) -> Trained:
        stages = self.recipe.stages
        set_seed(self.recipe.seed)
        model = make_model(self.recipe.model, self.data) if given is None else copy.deepcopy(given)
        self._prepare_data(model)
        if isinstance(model, QuantizedModel):
            asked = stages.quantize.quant_config() if stages.quantize is not None else model.quant_config
            if asked != model.quant_config:
                raise ConfigError(
                    f"the network is quantized, as {model.quant_config.to_json()}, but stages.quantize asks for "
                    f"{asked.to_json()}; start from the float model, or set quantize=null"
                )
            stages = replace(stages, finetune=None, relu=None, quantize=None)  # it has them behind it
        teacher: Any = None
        if not isinstance(model, QuantizedModel):
            channels = self._other_channels(model)
            trained_head = given is not None or not getattr(model, "has_new_head", self.recipe.model.path is None)
            for name, settings in (("finetune", stages.finetune), ("relu", stages.relu)):
                if settings is None:
                    continue
                before = model if trained_head and channels is None else None
                start = with_relu(model) if name == "relu" else model
                if channels is not None:
                    add_reduction(start, channels)
                model = self._train_stage(name, start, settings, before)
                trained_head, channels = True, None
            if channels is not None:
                add_reduction(model, channels)
                model = _folded(model)
            teacher = copy.deepcopy(model) if trained_head else None
        if stages.quantize is not None:
            model = self._quantize(model)
        if stages.qat is not None:
            if not isinstance(model, QuantizedModel):
                raise ConfigError("stages.qat needs a quantized network: add a quantize stage")
            model = self._train_stage(QAT, model, stages.qat, teacher)
        result = Trained(model, self.metrics, self.folder.path)
        if isinstance(model, QuantizedModel):
            self._finish_qann(result)
        if stages.convert is not None:
            self._convert(result)
        self._write_results(result)
        return result

    # ---- data ----

    def _prepare_data(self, model: Any) -> None:
        settings = self.recipe.data
        if self.data.kind == TEXT:
            if getattr(self.data.train, "texts", None) is not None:
                self.tokenizer = self.tokenizer or find_tokenizer(self.recipe.model.path or model.config._name_or_path)
                room = positions(model.config)
                if settings.max_length is not None and settings.max_length > room:
                    raise ConfigError(f"data.max_length is {settings.max_length}, but the model has {room} positions")
                with self.state.main_process_first():
                    self.data = tokenize(
                        self.data,
                        self.tokenizer,
                        settings.max_length or room,
                        token_cache(),
                        types="token_type_ids" in signature(own_class(model).forward).parameters,
                    )
            return
        own = getattr(model.config, "image_size", None)
        takes_any = "swin" in str(model.config.model_type)
        if settings.image_size is not None and own not in (None, settings.image_size) and not takes_any:
            raise ConfigError(
                f"data.image_size is {settings.image_size}, but the model takes {own} pixels per side; set {own}, "
                "or start from a model of that size"
            )
        # A pretrained network goes on seeing pixels scaled as it has learned them.
        known = find_pixels(self.recipe.model.path)
        mean, std = (known.mean, known.std) if known is not None else (self.data.mean, self.data.std)
        if self.data.kind != IMAGES:
            mean, std = self.data.mean, self.data.std
        self.pixels = Pixels(settings.image_size or own, mean, std)

    def _other_channels(self, model: PreTrainedModel) -> int | None:
        """The channels of the data, if the model takes another number: a 1×1 convolution then brings them together."""
        if self.data.kind == TEXT:
            return None
        channels = int(self.data.train[0]["pixel_values"].shape[0])
        return None if channels == getattr(model.config, "num_channels", channels) else channels

    def batches(self, split: Split, size: int, limit: int | None, device: Any) -> Iterator[dict[str, Tensor]]:
        """A split as the model takes it, with labels."""
        end = min(len(split), limit or len(split))
        for start in range(0, end, size):
            batch = split.__getitems__(range(start, min(start + size, end)))
            moved = {k: v.to(device) for k, v in batch.items()}
            if self.pixels is not None:
                moved["pixel_values"] = self.pixels(moved["pixel_values"])
            yield moved

    @torch.no_grad()
    def accuracy(self, model: Any, split: Split, size: int = 256) -> float:
        model.eval()
        right = 0
        for batch in self.batches(split, size, None, model.device):
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(dim=-1) == labels).sum())
        return right / len(split)

    def tell(self, stage: str, done: int, total: int, **numbers: float) -> None:
        if self.watcher is not None and self.state.is_main_process:
            self.watcher(Progress(stage, done, total, numbers))

    # ---- training ----

    def _train_stage(self, name: str, model: Any, settings: TrainStage, previous: Any) -> Any:
        folder = self.folder.stage(name)
        finished = self.folder.done(name)
        if finished is not None:
            self.metrics[name] = finished
            return self._load_stage(name, model)
        if settings.compile and isinstance(model, QuantizedModel):
            raise ConfigError("qat.compile: compilers reorder sums, and codes would differ; leave it off")
        teacher = self._teacher(name, settings, previous)
        set_dropout(model, settings.dropout)
        arguments = arguments_for(
            settings,
            folder,
            len(self.data.train),
            processes=self.state.num_processes,
            seed=self.recipe.seed,
            precision=self.recipe.precision,
            workers=self.recipe.workers,
            cpu=self.cpu,
        )
        stop = StopOnSignal()
        callbacks: list[Any] = [Journal(self.folder.path / METRICS, name), stop, SeedByProcess()]
        boards = dashboards(folder / "tensorboard", f"{self.recipe.name}-{name}") if self.state.is_main_process else []
        callbacks += boards
        if self.watcher is not None:
            callbacks.append(Reporter(name, self.watcher))
        trainer = StageTrainer(
            model,
            settings,
            arguments,
            self.data.train,
            self.data.validation,
            classes=len(self.data.classes),
            pixels=self.pixels,
            teacher=teacher,
            callbacks=callbacks,
        )
        # Those that look at their masks wait for the GPU in every step, and cannot be recorded.
        waiting = attention_without_waiting(model, teacher) if self.data.kind == TEXT else nullcontext()
        with stop.listening(), dropping_paths(model, settings.drop_path), waiting:
            trainer.train(resume_from_checkpoint=self.folder.checkpoint(name))
        for board in boards:  # closed by now: an evaluation after the end would open another
            trainer.remove_callback(board)
        if stop.anybody(self.state.device):
            raise InterruptedRunError(
                f"stopped in stage {name} at step {trainer.state.global_step} of {trainer.state.max_steps}; "
                f"saved in {folder}. --resume (resume=True) goes on from there"
            )
        ago = trainer.guard.diverged(finished=True) if trainer.guard is not None else 0
        if ago:
            trainer.stop_diverged(trainer.model, ago)
        return self._finish_stage(name, trainer)

    def _teacher(self, name: str, settings: TrainStage, previous: Any) -> Any:
        if settings.distill is None:
            return None
        if settings.distill.teacher != "previous":
            teacher = make_model(ModelSettings(path=settings.distill.teacher), self.data)
            if getattr(teacher, "has_new_head", False):
                raise ConfigError(f"{name}.distill.teacher: {settings.distill.teacher} has no head for these classes")
            channels = self._other_channels(teacher)
            if channels is not None:
                raise ConfigError(
                    f"{name}.distill.teacher: {settings.distill.teacher} takes {teacher.config.num_channels} channels, "
                    f"the data has {channels}"
                )
            return teacher
        if previous is None:
            raise ConfigError(
                f"{name}.distill: the network before this stage cannot teach, its head is not trained on these classes "
                f"(or it is quantized already). Add a stage before it, name a teacher, or set {name}.distill=null"
            )
        return copy.deepcopy(previous)

    def _finish_stage(self, name: str, trainer: StageTrainer) -> Any:
        history = [entry for entry in trainer.state.log_history if "eval_accuracy" in entry]
        test = trainer.evaluate(eval_dataset=self.data.test, metric_key_prefix="test")
        metrics = {
            "accuracy": test["test_accuracy"],
            "loss": test["test_loss"],
            "validation_accuracy": history[-1]["eval_accuracy"] if history else None,
            "best_validation_accuracy": trainer.state.best_metric,
            "best_step": trainer.state.best_global_step,
            "steps": trainer.state.global_step,
            "seconds": sum(e["train_runtime"] for e in trainer.state.log_history if "train_runtime" in e),
            "kept": trainer.stage.keep,
            "chosen_on_test": trainer.stage.keep == "best" and self.data.validation is self.data.test,
        }
        model = trainer.result()
        if isinstance(model, QuantizedModel):
            metrics["grid_agreement"] = test["test_grid_agreement"]
            metrics["smallest_scale"] = min(float(site.scale.detach().min()) for site in model.sites.values())
        if has_reduction(model):
            model = _folded(model)
        if self.state.is_main_process:
            self._save(model, self.folder.stage(name) / MODEL)
            best = trainer.state.best_model_checkpoint
            self._keep_best(name, best)
            self.folder.discard_checkpoints(name, None)
        self.folder.finish(name, metrics)
        self.metrics[name] = metrics
        self.state.wait_for_everyone()
        return model.to("cpu") if self.state.num_processes > 1 and not isinstance(model, QuantizedModel) else model

    def _keep_best(self, name: str, checkpoint: str | None) -> None:
        """The weights of the best evaluation, beside the network of the stage."""
        weights = Path(checkpoint) / "model.safetensors" if checkpoint else None
        if weights is not None and weights.is_file():
            target = self.folder.stage(name) / "best"
            target.mkdir(exist_ok=True)
            shutil.copyfile(weights, target / weights.name)

    def _save(self, model: Any, folder: Path, compact: bool = False) -> None:
        if isinstance(model, (QuantizedModel, SpikingModel)):
            save(model, folder, compact=compact)
        else:
            model.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        if self.pixels is not None:
            write_json(folder / "preprocessor_config.json", self.pixels.to_json())

    def _load_stage(self, name: str, like: Any) -> Any:
        folder = self.folder.stage(name) / MODEL
        if isinstance(like, QuantizedModel):
            return load(folder).to(like.device)
        return type(like).from_pretrained(folder, dtype=torch.float32).to(like.device)

    # ---- quantize, convert, verify ----

    def _quantize(self, model: PreTrainedModel) -> QuantizedModel:
        settings = self.recipe.stages.quantize
        assert settings is not None
        model = model.to(self.state.device)
        finished = self.folder.done("quantize")
        self.state.wait_for_everyone()  # all have asked before one of them can finish
        if finished is not None:
            self.metrics["quantize"] = finished
            loaded = load(self.folder.stage("quantize") / MODEL)
            assert isinstance(loaded, QuantizedModel)
            return loaded.to(self.state.device)
        qann = quantize(model.eval(), settings.quant_config())
        total = settings.batches
        stream = self.batches(self.data.train, settings.batch_size, settings.batch_size * total, self.state.device)

        def watched() -> Iterator[dict[str, Tensor]]:
            for number, batch in enumerate(stream, start=1):
                yield {k: v for k, v in batch.items() if k != "labels"}
                self.tell("quantize", number, total)

        calibrate(qann, watched())
        metrics = {"accuracy": self.accuracy(qann, self.data.test), "sites": len(qann.sites)}
        if self.state.is_main_process:
            self._save(qann, self.folder.stage("quantize") / MODEL)
        self.folder.finish("quantize", metrics)
        self.metrics["quantize"] = metrics
        self.state.wait_for_everyone()
        return qann

    def _finish_qann(self, result: Trained) -> None:
        """Weights onto the grid for good, then the figures of that network, which is the one that is saved."""
        qann = result.qann
        qann.eval()
        bits = qann.quant_config.weight_bits
        moved = snap(qann) if bits == 8 else 0.0
        first = next(self.batches(self.data.test, 32, None, qann.device))
        first.pop("labels")
        self.metrics["qann"] = {
            "accuracy": self.accuracy(qann, self.data.test),
            "samples": len(self.data.test),
            "parameters": sum(p.numel() for p in qann.parameters()),
            "grid_agreement": agreement(qann, first).share,
            "moved_by_snapping": float(moved) if isinstance(moved, (int, float)) else None,
        }
        if self.state.is_main_process:
            self._save(qann, self.folder.path / "qann", compact=bits == 8)

    def _convert(self, result: Trained) -> None:
        settings = self.recipe.stages.verify
        snn = result.snn = convert(result.qann)
        if self.state.is_main_process:
            self._save(snn, self.folder.path / "snn")
            if settings is not None:
                self._verify(result, snn)
        self.state.wait_for_everyone()

    def _verify(self, result: Trained, snn: SpikingModel) -> None:
        settings = self.recipe.stages.verify
        assert settings is not None
        total = min(len(self.data.test), settings.samples or len(self.data.test))
        over_time = OverTime()
        labels: list[Tensor] = []

        def stream() -> Iterator[dict[str, Tensor]]:
            for batch in self.batches(self.data.test, settings.batch_size, total, result.qann.device):
                labels.append(batch["labels"])
                yield batch

        result.certificate = verify(
            result.qann,
            snn,
            stream(),
            engine=settings.engine,
            progress=lambda done: self.tell("verify", done, total),
            watch=lambda output, run: over_time.add(run, labels.pop(0)),
        )
        for name in ("snn", "qann"):
            result.certificate.save(self.folder.path / name)
        numbers = over_time.numbers()
        steps = numbers["over_time"]
        self.metrics["snn"] = {
            "exact": result.certificate.exact,
            "samples": total,
            "accuracy": steps[-1]["accuracy"],
            "accuracy_at": {str(t): steps[min(t, len(steps)) - 1]["accuracy"] for t in settings.steps},
            "t_eq": numbers["t_eq"],
            "spikes_per_neuron": numbers["spikes_per_neuron"],
            "over_time": [{k: s[k] for k in ("step", "accuracy", "agreement")} for s in steps],
        }
        write_line(
            self.folder.path / METRICS,
            {"stage": "verify", **{k: v for k, v in self.metrics["snn"].items() if k != "over_time"}},
        )

    def _write_results(self, result: Trained) -> None:
        if self.state.is_main_process:
            figures = {
                "recipe": self.recipe.name,
                "note": self.recipe.note,
                "seed": self.recipe.seed,
                "data": {"name": self.data.name, "note": self.data.note},
                "metrics": json.loads(json.dumps(self.metrics)),
                "expected": [e.to_json() for e in self.recipe.expected],
                "versions": versions(),
            }
            write_json(self.folder.path / RESULTS, figures)
        self.state.wait_for_everyone()


def _folded(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its reduction folded, as it would be read from a file.

    Folding in place leaves parameters in another order and a weight in another memory layout. Then norms and
    convolutions differ in the last bit from those of a run that is resumed and reads the file.
    """
    fold_reduction(model)
    return rebuilt(model, {"num_channels": model.config.num_channels}, "number of channels")
