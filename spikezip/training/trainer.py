"""transformers' Trainer with what quantization-aware training needs besides: everything else is theirs."""

import copy
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import RandomSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from spikezip.data import Augment, Pixels
from spikezip.data.base import Split, collate
from spikezip.data.images import Images
from spikezip.data.randaugment import is_small
from spikezip.errors import ConfigError
from spikezip.measure.agreement import agreement
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.finite import DivergedError, FiniteGuard, find_cause
from spikezip.training.graphs import GraphedFunction, GraphedStep
from spikezip.training.losses import distillation_loss, label_loss
from spikezip.training.optimizer import make_optimizer
from spikezip.training.settings import TrainStage
from spikezip.training.sharded import check_sharded, fill, prepare_sharding, require_sharding, together
from spikezip.training.together import find_unused, require_scales

SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
WEIGHTS = "model.safetensors"
AGREEMENT_SAMPLES = 32


class StageTrainer(Trainer):
    """One stage of training: augmentation on the device, a teacher, rates by depth, guards, grid agreement."""

    def __init__(
        self,
        model: Any,
        stage: TrainStage,
        arguments: TrainingArguments,
        train: Split,
        validation: Split,
        *,
        classes: int,
        pixels: Pixels | None = None,
        teacher: Any = None,
        callbacks: Any = (),
    ) -> None:
        self.stage, self.pixels, self.teacher = stage, pixels, teacher
        self.augment = None if pixels is None else Augment(stage.augmentation, classes)
        self.guard: FiniteGuard | None = None
        self.recorded_step: GraphedStep | None = None
        self.recorded_augment = GraphedFunction(self._varied)
        self.graphed = stage.graphs
        self.steps: deque[list[dict[str, Any]]] = deque(maxlen=3)  # the batches of the latest steps, by their parts
        self.optimizer: Any = None
        if isinstance(train, Images) and arguments.device.type == "cuda" and not arguments.dataloader_num_workers:
            moved = train.moved(arguments.device)
            if moved is not train:  # what is there already is neither pinned nor sent
                arguments.dataloader_pin_memory = arguments.accelerator_config.non_blocking = False
            train = moved
        super().__init__(
            model=model,
            args=arguments,
            data_collator=collate,
            train_dataset=Dice(train, arguments.seed),
            eval_dataset=validation,
            compute_metrics=figures,
            preprocess_logits_for_metrics=_per_sample,
            callbacks=list(callbacks),
        )
        self.model_accepts_loss_kwargs = False  # our losses are means over a batch
        for noisy in (PrinterCallback, ProgressCallback):
            self.remove_callback(noisy)
        if teacher is not None:
            teacher.requires_grad_(False)
            teacher.eval().to(self.args.device)
        self.whole: Any = None
        require_sharding(self.is_fsdp_enabled)
        if self.args.world_size > 1:
            require_scales(model)
        if self.is_fsdp_enabled:
            self.whole = copy.deepcopy(model).cpu()  # sharding changes the model for good
            prepare_sharding(self.accelerator.state.fsdp_plugin, model, stage.drop_path)
        elif self.accelerator.ddp_handler is not None and self.args.world_size > 1:
            # Looking for them costs a walk over the graph in every step, and few models have any.
            self.accelerator.ddp_handler.find_unused_parameters = bool(find_unused(model, self._first_inputs()))

    def result(self) -> Any:
        """The network as it is now, whole. All processes must ask."""
        if self.whole is None:
            return self.accelerator.unwrap_model(self.model)
        fill(self.whole, self.model)
        return self.whole.to(self.args.device)

    # ---- what a step sees ----

    def _first_inputs(self) -> dict[str, Any]:
        self.model.eval()  # no augmentation, and no random numbers for it
        inputs = self._prepare_inputs(self.train_dataset.__getitems__(range(2)))
        return {name: value for name, value in inputs.items() if name != "labels"}

    def compute_loss_context_manager(self) -> Any:
        stack = super().compute_loss_context_manager()
        if self.is_fsdp_enabled and self.args.bf16:
            # accelerate leaves it to FSDP's mixed precision, which is off. A cache would keep all weights gathered.
            stack.enter_context(torch.autocast(self.args.device.type, torch.bfloat16, cache_enabled=False))
        return stack

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # An epoch is whole batches: without this the Trainer makes one more step of what is left of an accumulation.
        samples = self.train_dataset if train_dataset is None else train_dataset
        batch = self.stage.batch_size
        return RandomSampler(samples, num_samples=len(samples) // batch * batch)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = super()._prepare_inputs(inputs)
        if self.pixels is None or "pixel_values" not in inputs:
            return inputs
        pixels, labels = inputs["pixel_values"], inputs["labels"]
        if not self.model.training:
            return {**inputs, "pixel_values": self.pixels(pixels)}
        # Of small images the host launches many kernels that do little: a graph is one launch.
        vary = self.recorded_augment if self.uses_graphs(self.model) and is_small(pixels) else self._varied
        varied, labels = vary(pixels=pixels, labels=labels)
        return {**inputs, "pixel_values": varied, "labels": labels}

    def _varied(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        assert self.augment is not None  # asked for images only
        assert self.pixels is not None
        pixels, labels = self.augment(pixels, labels)
        return self.pixels(pixels), labels

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        if not model.training:
            logits = model(**inputs).logits
            loss = label_loss(logits, labels)
        else:
            logits = model(**inputs).logits
            loss = label_loss(logits, labels, self.stage.label_smoothing)
            distill = self.stage.distill
            if self.teacher is not None and distill is not None:
                loss = loss + distill.weight * distillation_loss(logits, self.answer(inputs), distill.temperature)
        return (loss, {"logits": logits}) if return_outputs else loss

    @torch.no_grad()
    def answer(self, inputs: dict[str, Any]) -> Tensor:
        """The teacher's logits, in the precision of training."""
        with self.accelerator.autocast():
            logits: Tensor = self.teacher(**inputs).logits
        return logits

    def uses_graphs(self, model: Any) -> bool:
        """On one GPU, without accumulation: its gradients would be overwritten."""
        return (
            self.graphed
            and model is self.model
            and not self.is_fsdp_enabled
            and self.args.device.type == "cuda"
            and self.args.gradient_accumulation_steps == 1
        )

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # nobody asks, and counting all parameters in every step takes longer than a small step

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        ago = self.guard.diverged() if self.guard is not None else 0
        if ago:
            self.stop_diverged(model, ago)
        if not self.steps or len(self.steps[-1]) == self.args.gradient_accumulation_steps:
            self.steps.append([])
        self.steps[-1].append(inputs)
        if not self.uses_graphs(model):
            return super().training_step(model, inputs, num_items_in_batch)
        if not model.training:  # asking costs less than telling every module
            model.train()
        if self.recorded_step is None:
            self.recorded_step = GraphedStep(model, self._whole_loss)
        return self.recorded_step(self._prepare_inputs(inputs))

    def _whole_loss(self, inputs: dict[str, Any]) -> Tensor:
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(self.model, inputs)
        return loss

    def stop_diverged(self, model: Any, ago: int) -> None:
        """Say where values stopped being finite, so many steps ago. That step was not taken."""
        self.graphed = False  # a replayed graph tells nobody what passes through it

        def again(inputs: dict[str, Any]) -> Tensor:
            model.train()
            with self.compute_loss_context_manager():
                loss: Tensor = self.compute_loss(model, self._prepare_inputs(inputs))
            return loss

        cause = find_cause(
            self.accelerator.unwrap_model(model), [partial(again, inputs) for inputs in self.steps[-ago]]
        )
        raise DivergedError(
            f"training diverged at step {self.state.global_step + 1 - ago}: {cause}. "
            "A lower learning rate, a longer warm-up or a smaller clip is the usual remedy"
        )

    # ---- optimizer ----

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.model if model is None else model, self.stage)
            self.guard = FiniteGuard(self.optimizer)
        return self.optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.args.world_size > 1 or self.is_fsdp_enabled or self.optimizer is None:
            norm = super()._clip_grad_norm(model)
        else:  # theirs walks over all modules twice in every step, which takes longer than a small step itself
            norm = torch.nn.utils.clip_grad_norm_(
                [p for group in self.optimizer.param_groups for p in group["params"]], self.args.max_grad_norm
            )
        if self.guard is not None and isinstance(norm, Tensor):
            self.guard.see_norm(norm)
        return norm

    # ---- evaluation ----

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        # Training leaves out a batch that is not full; evaluation leaves out nothing.
        self.args.dataloader_drop_last = False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = True

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        output = super().evaluation_loop(*args, **kwargs)
        if isinstance(self.model, QuantizedNetwork) and isinstance(self.eval_dataset, Split):
            prefix = kwargs.get("metric_key_prefix", "eval")
            few = self.eval_dataset.__getitems__(range(min(AGREEMENT_SAMPLES, len(self.eval_dataset))))
            self.model.eval()
            # The training forward pass as it is run in training: under autocast, where that is on.
            with self.compute_loss_context_manager(), together(self.model):
                found = agreement(self.model, self._prepare_inputs(few))
            output.metrics[f"{prefix}_grid_agreement"] = found.share
        return output

    # ---- checkpoints: plain state, by the names that the model has in memory ----

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        state = self.model.state_dict() if state_dict is None else state_dict
        owners: dict[tuple[int, torch.Size], str] = {}
        kept: dict[str, Tensor] = {}
        for name, tensor in state.items():  # tied weights are written once
            if owners.setdefault((tensor.data_ptr(), tensor.shape), name) == name or not tensor.numel():
                kept[name] = tensor.detach().contiguous()
        save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
        torch.save(self.args, folder / "training_args.bin")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        check_sharded(Path(resume_from_checkpoint), self.is_fsdp_enabled)
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        self.load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            super()._load_best_model()
        elif self.state.best_model_checkpoint is not None:
            self.load_weights(self.state.best_model_checkpoint)

    def load_weights(self, folder: str | os.PathLike[str]) -> None:
        """Weights of a checkpoint of this trainer, all of them or an error."""
        stored = load_file(Path(folder) / WEIGHTS)
        missing, foreign = self.model.load_state_dict(stored, strict=False)
        own = self.model.state_dict()
        stored_storages = {own[name].data_ptr() for name in stored if name in own}
        missing = [name for name in missing if own[name].data_ptr() not in stored_storages]
        if missing or foreign:
            raise ConfigError(f"{folder} does not fit the model: missing {missing[:3]}, unknown {list(foreign)[:3]}")


class Dice(Split):
    """A split whose random numbers, such as crops, follow from the batch itself.

    Taken from the generators they would depend on how far ahead batches are read, and by which worker. So a resumed
    run sees the very batches, and one with more workers too. Epochs differ, as the order of samples does.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self.split, self.seed, self.labels = split, seed, split.labels

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        name = f"{self.seed}:{','.join(map(str, indices))}"
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would reset the GPU's generators as well.
            torch.default_generator.manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"))
            return self.split.__getitems__(indices)


def share_batch(stage: TrainStage, samples: int, processes: int) -> tuple[int, int]:
    """The global batch as samples per device and pass, and passes per step.

    Example:
        >>> stage = TrainStage(epochs=1, batch_size=64, micro_batch_size=8, learning_rate=1e-3)
        >>> share_batch(stage, samples=1000, processes=2)
        (8, 4)
    """
    batch, micro = stage.batch_size, stage.micro_batch_size
    if batch % processes:
        raise ConfigError(f"batch_size {batch} cannot be divided among {processes} processes")
    per_device = min(micro or batch // processes, batch // processes)
    if batch % (per_device * processes):
        raise ConfigError(f"micro_batch_size {per_device} × {processes} processes does not divide batch_size {batch}")
    if samples < batch:
        raise ConfigError(f"batch_size {batch} is more than the {samples} training samples; make it smaller")
    return per_device, batch // (per_device * processes)


def arguments_for(
    stage: TrainStage, folder: Path, samples: int, *, processes: int, seed: int, precision: str, workers: int, cpu: bool
) -> TrainingArguments:
    """The Trainer's arguments for a stage: global batch → per device and accumulation, epochs → steps."""
    per_device, accumulate = share_batch(stage, samples, processes)
    # Batches that are not full are left out, so that every step is a mean over the same number of samples.
    per_epoch = (samples // (per_device * processes)) // accumulate
    total = max(1, round(per_epoch * stage.epochs))
    every = max(1, round(per_epoch * stage.evaluate_every)) if stage.evaluate_every else total
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=total,
        per_device_train_batch_size=per_device,
        per_device_eval_batch_size=max(per_device, 64),
        gradient_accumulation_steps=accumulate,
        learning_rate=stage.peak_learning_rate,
        max_grad_norm=stage.clip,
        lr_scheduler_type=SCHEDULES[stage.schedule],
        warmup_steps=round(stage.warmup_epochs * per_epoch),
        bf16=precision == "bf16",
        use_cpu=cpu,
        seed=seed,
        data_seed=seed,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        # The last, and the best where that is another. (With 1, the Trainer would delete the last when it is stopped.)
        save_total_limit=2,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        load_best_model_at_end=stage.keep == "best",
        logging_strategy="steps",
        logging_steps=max(1, min(50, total // 20)),
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=[],
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=workers,  # begun anew each epoch: else a resumed run draws other random numbers
        dataloader_drop_last=True,
        dataloader_pin_memory=not cpu and torch.cuda.is_available(),
        # Else the host waits at every batch for all that the GPU has to do.
        accelerator_config={"non_blocking": not cpu and torch.cuda.is_available()},
    )


def figures(prediction: Any) -> dict[str, float]:
    """The share of samples whose largest output is their label, and the mean loss.

    The Trainer's own loss weighs batches alike, full or not, and over several processes counts samples twice.
    """
    largest, losses = prediction.predictions
    return {"accuracy": float((largest == prediction.label_ids).mean()), "loss": float(losses.mean(dtype="float64"))}


def _per_sample(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What `figures` needs of a batch: far less than all logits."""
    return logits.argmax(dim=-1), F.cross_entropy(logits.float(), labels, reduction="none")
