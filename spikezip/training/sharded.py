"""Sharded training (FSDP 2): every process keeps its part of the weights, the gradients and the optimizer's state.

accelerate configures it (`accelerate launch --config_file`). What a quantized network needs besides stands here:

- Weights are gathered in the precision that they have. FSDP's own mixed precision would round weights and scales to
  bfloat16 before they are put on their grid: another network would be trained than the one that is evaluated. Autocast
  does here what it does elsewhere.
- A block of a float model is gathered when it runs. A quantized network runs as one program, so it is gathered as a
  whole: weights lie whole on every device during a step, between steps in parts, as gradients and moments do.
- What leaves a stage is a whole network again, on every process.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spikezip.errors import ConfigError
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.depth import blocks

STATE = "pytorch_model_fsdp.bin"  # what accelerate writes for a sharded model
# What wrappers put into the names of parameters.
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
# Where attentions keep the probability that they hand to their function.
PROBABILITIES = ("dropout_prob", "attention_dropout", "dropout", "drop_prob")


def check_launcher(precision: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse what a launcher was told and a run cannot do, before anything is loaded.

    Example:
        >>> check_launcher("float32", {"ACCELERATE_USE_DEEPSPEED": "true"})
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: the launcher asks for DeepSpeed, which does not run here; FSDP shards as well ...
    """

    def on(name: str) -> bool:
        return environment.get(name, "false").lower() in ("true", "1", "yes")

    if on("ACCELERATE_USE_DEEPSPEED"):
        raise ConfigError(
            "the launcher asks for DeepSpeed, which does not run here; FSDP shards as well (docs/distributed.md)"
        )
    asked = environment.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if asked not in ("no", "bf16" if precision == "bf16" else "no"):
        raise ConfigError(
            f"the launcher asks for mixed_precision {asked}, the recipe for precision {precision}: the recipe decides; "
            "say mixed_precision: no in accelerate's config, and --set precision=bf16 for bfloat16"
        )
    if not on("ACCELERATE_USE_FSDP"):
        return
    if on("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise ConfigError(
            "fsdp_cpu_ram_efficient_loading leaves all processes but the first without weights, and every process "
            "calibrates and checks the network; set it to false in accelerate's config"
        )
    version = environment.get("FSDP_VERSION", "1")
    if version != "2":
        raise ConfigError(
            f"fsdp_version is {version}: that one keeps the weights and scales of a block in one flat tensor, and was "
            "never tried here; set fsdp_version: 2 in accelerate's config"
        )
    kind = environment.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT")
    if kind.upper() != "FULL_STATE_DICT":
        raise ConfigError(
            f"fsdp_state_dict_type {kind} leaves no weights that can be read without FSDP (those of the best "
            "evaluation, for one); set it to FULL_STATE_DICT in accelerate's config"
        )


def require_sharding(enabled: bool, environment: Mapping[str, str] = os.environ) -> None:
    """accelerate shards among GPUs only, and goes on without a word elsewhere.

    Example:
        >>> require_sharding(False, {"ACCELERATE_USE_FSDP": "true"})
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: the launcher asks for FSDP, but accelerate shards only among processes with ...
    """
    if environment.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not enabled:
        raise ConfigError(
            "the launcher asks for FSDP, but accelerate shards only among processes with a GPU each, started by "
            "accelerate launch or torchrun; start it so, or leave FSDP off"
        )


def prepare_sharding(plugin: Any, model: Any, drop_path: float = 0.0) -> None:
    """Set what of accelerate's FSDP settings follows from the model."""
    if getattr(plugin, "fsdp_version", 1) != 2:
        raise ConfigError("this accelerate does not know FSDP 2: pip install -U accelerate")
    plugin.mixed_precision_policy = None
    if isinstance(model, QuantizedNetwork):
        _shard_as_one(plugin, model)
        return
    if plugin.activation_checkpointing and (drop_path > 0 or drops(model)):
        raise ConfigError(
            "fsdp_activation_checkpointing computes blocks twice, and accelerate throws other dice for dropout the "
            "second time: gradients would be wrong. Set dropout and drop_path of this stage to 0, or leave it off"
        )
    if plugin.transformer_cls_names_to_wrap is None:
        # The classes that transformers names itself include embeddings, which accelerate then shards twice and fails.
        found = {type(model.get_submodule(name)).__name__ for name in blocks(model)}
        plugin.transformer_cls_names_to_wrap = sorted(found)


def _shard_as_one(plugin: Any, qann: Any) -> None:
    """Let accelerate shard a network in one unit: no block, embedding or head of it runs by itself."""
    if plugin.activation_checkpointing:
        warnings.warn("fsdp_activation_checkpointing: a quantized network has no blocks, it goes without", stacklevel=2)
    plugin.activation_checkpointing = False
    plugin.transformer_cls_names_to_wrap = []
    qann.get_input_embeddings = qann.get_output_embeddings = _none  # accelerate asks


def _none() -> None:
    return None


@contextmanager
def together(model: Any) -> Iterator[None]:
    """Inside the block the weights of a sharded network are whole, for what reads them outside of a forward pass.

    Behind it they are in parts: an evaluation leaves them whole, and the optimizer's state is saved by its parts.
    """
    sharded = hasattr(model, "unshard")
    if sharded:
        model.unshard()
    yield
    if sharded:
        model.reshard()


def check_sharded(checkpoint: Path, enabled: bool) -> None:
    """A run goes on as it began: the moments of the optimizer are stored in another form with FSDP than without.

    Example:
        >>> check_sharded(Path("run/qat/checkpoint-3"), True)
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: run/qat/checkpoint-3 was saved without FSDP, and its optimizer cannot be read ...
    """
    if (checkpoint / STATE).is_file() != enabled:
        before, now = ("without", "with") if enabled else ("with", "without")
        raise ConfigError(
            f"{checkpoint} was saved {before} FSDP, and its optimizer cannot be read {now}: resume it {before} FSDP"
        )


def drops(model: nn.Module) -> bool:
    """Whether a model in training leaves out anything at random.

    Example:
        >>> drops(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.0))), drops(nn.Dropout(0.1))
        (False, True)
    """
    for module in model.modules():
        rates = [getattr(module, name, 0.0) for name in PROBABILITIES]
        rates += [module.p] if isinstance(module, nn.Dropout) else []
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            return True
    return False


def plain_name(name: str) -> str:
    """The name of a parameter as it is without wrappers.

    Example:
        >>> plain_name("vit.layers.0._checkpoint_wrapped_module.layernorm_before.weight")
        'vit.layers.0.layernorm_before.weight'
    """
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: all of it, where nothing is sharded.

    Example:
        >>> import torch
        >>> local(torch.ones(2))
        tensor([1., 1.])
    """
    tensor = tensor.detach()
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def gathered(tensor: Tensor) -> Tensor:
    """A tensor as a whole. All processes take part where it is sharded.

    Example:
        >>> import torch
        >>> gathered(torch.ones(2))
        tensor([1., 1.])
    """
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def fill(whole: nn.Module, sharded: nn.Module) -> None:
    """Copy the weights of a sharded model into a whole one. All processes take part, and all get them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # not in every torch

    state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
    whole.load_state_dict(state)
