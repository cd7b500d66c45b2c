"""Quantized and spiking networks as `PreTrainedModel`s: pipelines, Trainer, `generate` and the Hub take them.

A network gets a class of its own, made once for each class of transformers: a subclass of the core's network and of
`PreTrainedModel`, under the name of the float model's class, by which transformers looks models up. It does not inherit
from the float model's class, whose methods need modules that are not there.
"""

import functools
import importlib
import inspect
import warnings
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.hub import convert_file_size_to_int

from spikezip.engines.network import SpikingNetwork, convert
from spikezip.errors import ConfigError, InputError
from spikezip.models.examples import example_inputs
from spikezip.models.saved_config import files_beside
from spikezip.program.batch import LABELS, Batch, by_position, named
from spikezip.quant.config import QuantConfig
from spikezip.quant.network import QuantizedNetwork, quantize

_SEQ2SEQ_IDS = "decoder_input_ids"


def quantize_pretrained(
    model: PreTrainedModel,
    config: QuantConfig | None = None,
    example: Mapping[str, Any] | Tensor | None = None,
    batch_dim: int = 0,
) -> Any:
    """The quantized network of a Hugging Face model, as a `PreTrainedModel`; `example` is derived if not given."""
    if isinstance(model, (QuantizedNetwork, SpikingNetwork)):
        raise ConfigError("this model is quantized already; start from the float model")
    network = quantize(model, config, example_inputs(model) if example is None else example, batch_dim)
    return as_pretrained(network, model.config, type(model), getattr(model, "generation_config", None))


def convert_pretrained(qann: Any) -> Any:
    """The spiking network of a quantized one, a `PreTrainedModel` if that is one."""
    snn = convert(qann)
    if not isinstance(qann, _Pretrained):
        return snn
    return as_pretrained(snn, qann.config, qann.original_class, getattr(qann, "generation_config", None))


def as_pretrained(
    network: QuantizedNetwork | SpikingNetwork,
    config: PreTrainedConfig,
    original: Any,
    generation: GenerationConfig | None = None,
) -> Any:
    """The network as a `PreTrainedModel`, in the place of a model of the class `original`. It takes over the tensors.

    Example:
        >>> import spikezip.quant.network, transformers
        >>> config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(config)
        >>> example = {"pixel_values": torch.zeros(2, 3, 32, 32)}
        >>> qann = as_pretrained(spikezip.quant.network.quantize(model, example=example), config, type(model))
        >>> type(qann).__name__, isinstance(qann, PreTrainedModel), isinstance(qann, QuantizedNetwork)
        ('ViTForImageClassification', True, True)
    """
    found = pretrained_class(_core(network), original)
    made = found.__new__(found)
    config = deepcopy(config)
    # As it was captured: there is no other implementation to choose.
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    PreTrainedModel.__init__(made, config)
    vars(made).update(vars(network))
    if made.can_generate():
        if generation is not None:
            made.generation_config = deepcopy(generation)
        encoder = made._modules.get("encoder")
        if encoder is not None:  # `generate` asks it for this name
            encoder.main_input_name = made.main_input_name
    return made


def _core(network: Any) -> Any:
    return QuantizedNetwork if isinstance(network, QuantizedNetwork) else SpikingNetwork


@functools.cache
def pretrained_class(core: Any, original: Any) -> Any:
    """The class of networks, quantized or spiking, that stand for models of the class `original`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    # Trainer and pipelines read from the signature what a model takes.
    forward.__signature__ = inspect.signature(original.forward)  # type: ignore[attr-defined]
    generates = original.can_generate()
    bases = (_Generates, _Pretrained, core, PreTrainedModel, GenerationMixin) if generates else (
        _Pretrained, core, PreTrainedModel
    )  # fmt: skip
    names = {name: getattr(original, name) for name in _KEPT if hasattr(original, name)}
    body = {"__module__": __name__, "__doc__": core.__doc__, "original_class": original, "forward": forward, **names}
    return type(original.__name__, bases, body)


_KEPT = ("config_class", "main_input_name", "base_model_prefix", "input_modalities")


def _restore(core: Any, original: Any) -> Any:
    found = pretrained_class(core, original)
    return found.__new__(found)


class _Pretrained(nn.Module):
    """What makes a network a model of transformers. Stands before the core's class and `PreTrainedModel`."""

    original_class: ClassVar[type[PreTrainedModel]]
    program: Any
    config: Any
    main_input_name: str
    loss_type: str | None
    loss_function: Any
    push_to_hub: Any

    def run(self, *args: Any, return_dict: bool | None = None, **kwargs: Any) -> Any:
        """The forward pass: inputs by name, or by position in the program's order; labels give a loss."""
        given = by_position(self.program, args, kwargs, self.main_input_name)
        output = super().forward(**given)  # the core's, which prepares them
        loss = self._loss(output, given)
        if not isinstance(output, Mapping):
            return output if loss is None else (loss, output)
        whole = model_output(self.program.output_class, output if loss is None else {"loss": loss, **output})
        wanted = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return whole if wanted or not isinstance(whole, ModelOutput) else whole.to_tuple()

    def prepare(self, batch: Batch) -> dict[str, Any]:
        """The inputs of the program from a batch as a tokenizer or a data loader gives it."""
        prepared: dict[str, Any] = super().prepare(  # type: ignore[misc]  # the core's
            self._with_decoder_ids(named(self.program, batch, self.main_input_name))
        )
        return prepared

    def _with_decoder_ids(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the decoder reads in training is the labels, one place to the right."""
        labels = batch.get("labels")
        if labels is None or batch.get(_SEQ2SEQ_IDS) is not None or _SEQ2SEQ_IDS not in self.program:
            return batch
        start, pad = (getattr(self.config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
        if start is None:
            raise InputError("the configuration has no decoder_start_token_id: give decoder_input_ids")
        shifted = F.pad(labels[:, :-1], (1, 0), value=start)
        return {**batch, _SEQ2SEQ_IDS: shifted.masked_fill(shifted == -100, 0 if pad is None else pad)}

    # --- loss

    def _loss(self, output: Any, given: Mapping[str, Any]) -> Tensor | None:
        """The loss as the float model's class computes it from its output, if there are labels."""
        labels = {name: given[name] for name in LABELS if given.get(name) is not None}
        if not labels:
            return None
        items = given.get("num_items_in_batch")
        more = {} if items is None else {"num_items_in_batch": items}
        target = labels.get("labels", labels.get("label"))
        name, function = self.loss_type, self.loss_function
        start = output.get("start_logits") if isinstance(output, Mapping) else None
        if start is not None and {"start_positions", "end_positions"} <= set(labels):
            found: Tensor = function(start, output["end_logits"], labels["start_positions"], labels["end_positions"])
            return found
        logits = output.get("logits") if isinstance(output, Mapping) else None
        if target is None or logits is None:
            raise InputError(self._no_loss(labels))
        target = target.to(logits.device)
        if name in ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification",
                    "ForAudioClassification"):  # fmt: skip
            return function(target, logits, self.config)
        if name == "ForTokenClassification":
            return function(logits, target, self.config, **more)
        if name == "ForSemanticSegmentation":
            ignored = getattr(self.config, "semantic_loss_ignore_index", 255)
            return function(logits, target, ignore_index=ignored)
        if name == "ForMaskedLM" or (_SEQ2SEQ_IDS in self.program and self._generates()):
            loss = F.cross_entropy(
                logits.float().flatten(0, -2), target.flatten(), reduction="mean" if items is None else "sum"
            )
            return loss if items is None else loss / items
        if name in ("ForCausalLM", "ForConditionalGeneration") or (name is None and self._generates()):
            return _causal_loss(logits, target, **more)
        if self.original_class.__name__.endswith(("ForMultipleChoice", "ForNextSentencePrediction")):
            return F.cross_entropy(logits, target.flatten())
        raise InputError(self._no_loss(labels))

    def _generates(self) -> bool:
        return issubclass(type(self), GenerationMixin)

    def _no_loss(self, labels: Mapping[str, Any]) -> str:
        return (
            f"{', '.join(labels)}: the loss of {self.original_class.__name__} is not known here; leave them out and "
            "compute it from the output"
        )

    # --- what transformers asks of a model

    @property
    def dtype(self) -> torch.dtype:
        return next(t.dtype for t in chain(self.parameters(), self.buffers()) if t.is_floating_point())

    def save_pretrained(
        self, save_directory: str | Path, is_main_process: bool = True, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Save program, tensors, and the configuration that transformers reads; `spikezip.load` gives it back."""
        if is_main_process:
            files = importlib.import_module("spikezip.files")
            size = kwargs.get("max_shard_size")
            shards = {} if size is None else {"shard_bytes": convert_file_size_to_int(size)}
            files.save(self, save_directory, extra=files_beside(self), state=kwargs.get("state_dict"), **shards)
        if push_to_hub:
            upload = {k: kwargs[k] for k in ("commit_message", "private", "token", "revision") if k in kwargs}
            self.push_to_hub(kwargs.get("repo_id") or Path(save_directory).name, **upload)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For copies and pickles: the class is made again from the two that it stands for."""
        return _restore, (_core(self), self.original_class), vars(self)


def _causal_loss(logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
    from transformers.loss.loss_utils import ForCausalLMLoss

    found: Tensor = ForCausalLMLoss(logits, labels, vocab_size=logits.shape[-1], **more)
    return found


# --- outputs


def model_output(name: str, values: Mapping[str, Any]) -> Any:
    """Values in the output class of transformers with this name; a dict if it is none."""
    found = _output_class(name)
    return dict(values) if found is None else _filled(found, values)


@functools.cache
def _output_class(name: str) -> type[ModelOutput] | None:
    """The name comes from a file: nothing is imported but transformers, and only a class of outputs is returned."""
    module, _, leaf = name.rpartition(".")
    if module.split(".")[0] != "transformers":
        return None
    try:
        found = getattr(importlib.import_module(module), leaf, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, ModelOutput) else None


def _filled(kind: Any, values: Mapping[str, Any]) -> Any:
    hints = _fields(kind)
    known = {k: _nested(hints[k], v) for k, v in values.items() if k in hints}
    made = kind(**known)
    for key in values.keys() - known.keys():  # such as a loss that this class has no field for
        made[key] = values[key]
    return made


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _nested(hint: Any, value: Any) -> Any:
    """The output of a part of the model is in the class that the field is declared with."""
    if not isinstance(value, Mapping):
        return value
    classes = [c for c in (hint, *get_args(hint)) if isinstance(c, type) and issubclass(c, ModelOutput)]
    return _filled(classes[0], value) if classes else dict(value)


# --- generation


class _Generates(GenerationMixin):
    """`generate` without a cache: the whole sequence is run again for every token."""

    original_class: ClassVar[type[PreTrainedModel]]
    program: Any
    main_input_name: str

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        self._check_way_of_generating()
        _warn_of_no_cache()
        return super().generate(*args, **{**kwargs, "use_cache": False})

    def _check_way_of_generating(self) -> None:
        own = self.original_class.generate is not GenerationMixin.generate
        takes = inspect.signature(self.original_class.forward).parameters
        if own or "langs" in takes or "perm_mask" in takes:  # the last two put a masked token at the end
            raise ConfigError(f"{self.original_class.__name__} generates in a way of its own, which is not supported")

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """All of the sequence so far, and of the rest what the program takes."""
        encoder = kwargs.pop("encoder_outputs", None)
        key = "input_ids" if encoder is None else _SEQ2SEQ_IDS
        given = {**kwargs, **(encoder or {}), key: input_ids}
        inputs = {node.name: given[node.name] for node in self.program.inputs if given.get(node.name) is not None}
        positions = inputs.get("position_ids")
        if positions is not None:
            inputs["position_ids"] = positions.expand(len(input_ids), -1)
        return inputs

    def _maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor: Tensor, model_kwargs: dict[str, Any], model_input_name: str | None, *_: Any, **__: Any
    ) -> dict[str, Any]:
        """The encoder is part of the program: what it reads is carried in the place of what it returns."""
        if self.config.is_encoder_decoder:
            name = model_input_name or self.main_input_name
            model_kwargs["encoder_outputs"] = {name: inputs_tensor}
        return model_kwargs

    # Its name before transformers 5.20.
    _prepare_encoder_decoder_kwargs_for_generation = _maybe_prepare_encoder_kwargs_for_generation


@functools.cache
def _warn_of_no_cache() -> None:
    warnings.warn("there is no cache yet: every new token runs the whole sequence again", stacklevel=3)
