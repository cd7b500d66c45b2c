"""Float model → quantized network: apply the plan of `models.plan` to a copy."""

import copy
import warnings
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spikezip.errors import ConfigError
from spikezip.models import attention
from spikezip.models.coverage import checked_plan
from spikezip.models.plan import ACTIVATION, ATTENTION, INPUT, OUTPUT, Plan, SitePlan, is_relu
from spikezip.quant.attention import QuantAttention
from spikezip.quant.config import QuantConfig
from spikezip.quant.embedding import adopt_embeddings
from spikezip.quant.model import QuantizedModel, adopt_model
from spikezip.quant.site import Site
from spikezip.quant.synapse import adopt_input, adopt_linear
from spikezip.spiking.differential import Differential
from spikezip.spiking.hooks import SITE_IN, SITE_OUT, attach_hooks
from spikezip.spiking.norm import adopt_norm


def quantize(model: PreTrainedModel, config: QuantConfig | None = None) -> QuantizedModel:
    """A quantized copy (QANN) of a float model; the float model stays untouched.

    The copy keeps class, module paths and weight names. It needs scales next: `spikezip.calibrate`, or training.

    Example:
        >>> import spikezip, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit), spikezip.QuantConfig(levels=16))
        >>> len(qann.sites), qann.sites["layers.0.attention.q"]
        (12, Site('layers.0.attention.q', -8…7))
    """
    config = config or QuantConfig()
    plan = checked_plan(model)
    dtype = next(model.parameters()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the model is in {dtype}: call model.float() first; codes need float32 or float64")
    qann = copy.deepcopy(model)
    apply_plan(qann, plan, config)
    return adopt_model(qann, config, plan)


def apply_plan(model: PreTrainedModel, plan: Plan, config: QuantConfig) -> None:
    idle = [pattern for pattern in config.sites if not any(fnmatchcase(site.name, pattern) for site in plan.sites)]
    if idle:
        raise ConfigError(f"no site matches {', '.join(map(repr, idle))}; spikezip.coverage(model) lists the sites")
    modules = dict(model.named_modules())
    for parameter, product in plan.folds.items():
        _fold(model, parameter, modules[product])
    warned = _replace_functions(model, plan, modules)
    modules = dict(model.named_modules())
    like = next(model.parameters())
    sites: dict[str, Site] = {}
    attentions: dict[str, dict[str, Site]] = {}
    for site_plan in plan.sites:
        site = sites[site_plan.name] = _make_site(site_plan, config, like)
        if site_plan.where == ATTENTION:
            attentions.setdefault(site_plan.module, {})[site_plan.name.rsplit(".", 1)[1]] = site
        else:
            child = {OUTPUT: SITE_OUT, ACTIVATION: SITE_OUT, INPUT: SITE_IN}[site_plan.where]
            modules[site_plan.module].add_module(child, site)
    for name, five in attentions.items():
        modules[name].add_module(attention.CHILD, QuantAttention(**cast(dict[str, Any], five)))
    for name in {site_plan.module for site_plan in plan.sites}:
        attach_hooks(modules[name])
        adopt_norm(modules[name])
    for name, source in plan.reads.items():
        adopt_linear(modules[name], name, config.weight_bits, sites[source])
    if plan.input_layer is not None:
        entry = next(site for site in sites.values() if site.entry)
        layer = modules[plan.input_layer]
        if not isinstance(layer, nn.Conv2d):
            raise ConfigError(f"the input layer {plan.input_layer} is a {type(layer).__name__}, not a Conv2d")
        adopt_input(layer, plan.input_layer, config.weight_bits, entry)
    if config.embedding_bits is not None:
        adopt_embeddings(model, config.embedding_bits, plan.constants)
    model.set_attn_implementation(attention.NAME)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # a step looks at the whole sequence
    if warned:
        warnings.warn(
            f"a differential operator in the spiking network: {', '.join(sorted(warned))}. It is exact, but recomputed "
            "in every step; fine-tune with ReLU for a network that only adds spikes.",
            stacklevel=3,
        )


def _make_site(plan: SitePlan, config: QuantConfig, like: Tensor) -> Site:
    settings = config.site(plan.name)
    try:
        lo, hi = settings.range(plan.signed, config.levels)
        if settings.per_channel and plan.where == ATTENTION:
            raise ConfigError("per_channel=True: products inside attention take one scale for all channels")
        if plan.where == ACTIVATION and not plan.signed and lo < 0:
            raise ConfigError(f"codes from {lo}: this site is the ReLU itself, so its codes begin at 0")
    except ConfigError as error:
        raise ConfigError(f"site {plan.name!r}: {error}") from None
    return Site(plan.name, lo, hi, plan.entry, like, by_channel=settings.per_channel)


def _replace_functions(model: nn.Module, plan: Plan, modules: dict[str, nn.Module]) -> set[str]:
    """Put ReLU away where a site stands for it, wrap the other functions; returns the names of those."""
    covered = {site.module for site in plan.sites if site.where == ACTIVATION and not site.signed}
    wrapped = set()
    for name in plan.differential:
        function = modules[name]
        if name in covered and is_relu(function):
            replacement: nn.Module = nn.Identity()  # the unsigned quantizer is the ReLU
        else:
            replacement = Differential(function)
            wrapped.add(type(function).__name__)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacement)
    return wrapped


@torch.no_grad()
def _fold(model: nn.Module, parameter: str, product: nn.Module) -> None:
    """Multiply a scaling of a product's output into its weights, so that the site behind it sees the scaled value."""
    factor = model.get_parameter(parameter)
    weight, bias = product.weight, product.bias
    assert isinstance(weight, Tensor)
    weight.mul_(factor[:, None])
    if isinstance(bias, Tensor):
        bias.mul_(factor)
    factor.fill_(1.0)
