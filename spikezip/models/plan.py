"""From a model and its table to a plan: where each site goes, which site each product reads, what has no rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spikezip.models.table import INPUT_SITE, UNSIGNED_INPUT_SITE, Table, match, resolve
from spikezip.models.tables import TABLES, find_table
from spikezip.spiking.attention import SITES as ATTENTION_SITES

OUTPUT, INPUT, ACTIVATION, ATTENTION = "output", "input", "activation", "attention"


@dataclass(frozen=True)
class SitePlan:
    """A site to be placed: its name, the module it belongs to, and how it is attached."""

    name: str
    module: str  # as the installed transformers calls it
    where: str  # OUTPUT, INPUT, ACTIVATION or ATTENTION
    signed: bool = True
    entry: bool = False


@dataclass
class Plan:
    """All decisions for one model; `problems` is empty if every module has a rule."""

    table: Table | None
    canonical: dict[str, str] = field(default_factory=dict)  # installed module name → name in the table
    sites: list[SitePlan] = field(default_factory=list)
    reads: dict[str, str] = field(default_factory=dict)  # installed product name → site name
    differential: list[str] = field(default_factory=list)  # installed names of functions that stay functions
    input_layer: str | None = None
    constants: list[str] = field(default_factory=list)
    folds: dict[str, str] = field(default_factory=dict)  # parameter name → product name, both installed
    roles: dict[str, str] = field(default_factory=dict)  # installed module name → what becomes of it
    problems: list[str] = field(default_factory=list)


def make_plan(model: PreTrainedModel) -> Plan:
    """Decide, without touching the model, where everything goes."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    table = find_table(str(model_type)) if model_type else None
    if table is None:
        known = ", ".join(sorted(t for table in TABLES for t in table.model_types))
        problem = f"there is no table for model type {model_type!r} ({type(model).__name__}); known: {known}"
        return Plan(None, problems=[problem], roles={name: "" for name, _ in model.named_modules() if name})
    prefix = model.base_model_prefix if hasattr(model, model.base_model_prefix) else ""
    modules = dict(model.named_modules())
    plan = Plan(table, {name: table.canonical(name, prefix) for name in modules if name})
    # Where two modules share a canonical name (a wrapper and what it wraps), the inner one comes later and counts.
    installed = {canonical: name for name, canonical in plan.canonical.items()}
    head = _head(model, table, plan)
    _place_sites(plan, table, head, installed, modules)
    _connect_products(plan, {**table.reads, **table.heads.get(head, {})}, installed)
    _assign_roles(plan, model, modules)
    return plan


def _head(model: PreTrainedModel, table: Table, plan: Plan) -> str:
    """The longest suffix of the model's class name that the table knows a head for."""
    name = type(model).__name__
    found = [suffix for suffix in table.heads if name.endswith(suffix)]
    if not found:
        plan.problems.append(f"no rule for the head of {name}; known heads: {', '.join(table.heads)}")
        return ""
    return max(found, key=len)


def _matches(pattern: str, installed: Mapping[str, str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """`(canonical name, installed name, stars)` of every module that a pattern matches."""
    return [(c, name, stars) for c, name in installed.items() if (stars := match(pattern, c)) is not None]


def _require(plan: Plan, pattern: str, found: Iterable[object]) -> None:
    if not pattern.startswith("?") and not list(found):
        plan.problems.append(
            f"the table's row {pattern!r} matches no module: this version of transformers may name it differently"
        )


def _place_sites(
    plan: Plan, table: Table, head: str, installed: dict[str, str], modules: Mapping[str, nn.Module]
) -> None:
    for pattern in (*table.outputs, *table.head_outputs.get(head, ())):
        found = _matches(pattern, installed)
        _require(plan, pattern, found)
        plan.sites += [SitePlan(c, name, OUTPUT, entry=c == table.entry) for c, name, _ in found]
    for pattern in table.activations:
        found = _matches(pattern, installed)
        _require(plan, pattern, found)
        for canonical, name, _ in found:
            plan.sites.append(SitePlan(canonical, name, ACTIVATION, signed=not is_relu(modules[name])))
    found = _matches(table.attention, installed)
    _require(plan, table.attention, found)
    for canonical, name, _ in found:
        plan.sites += [SitePlan(f"{canonical}.{s}", name, ATTENTION, signed=s != "p") for s in ATTENTION_SITES]
    if table.input_layer is not None:
        plan.input_layer = installed.get(table.input_layer)
        _require(plan, table.input_layer, [plan.input_layer] if plan.input_layer else [])
    for pattern in table.constants:
        found = _matches(pattern, installed)
        _require(plan, pattern, found)
        plan.constants += [name for _, name, _ in found]
    for parameter, product in table.folds.items():
        owner, attribute = parameter.rsplit(".", 1)
        for _, name, stars in _matches(owner, installed):
            target = resolve(product, stars, installed)
            if target is not None and isinstance(getattr(modules[name], attribute, None), nn.Parameter):
                plan.folds[f"{name}.{attribute}"] = installed[target]


def _connect_products(plan: Plan, reads: Mapping[str, str | tuple[str, ...]], installed: Mapping[str, str]) -> None:
    names = {site.name for site in plan.sites}
    for pattern, target in reads.items():
        found = _matches(pattern, installed)
        _require(plan, pattern, found)
        for canonical, name, stars in found:
            if target in (INPUT_SITE, UNSIGNED_INPUT_SITE):
                site = f"{canonical}.in"
                plan.sites.append(SitePlan(site, name, INPUT, signed=target == INPUT_SITE))
                plan.reads[name] = site
                continue
            options = (target,) if isinstance(target, str) else target
            chosen = next(filter(None, (resolve(option, stars, names) for option in options)), None)
            if chosen is None:
                plan.problems.append(f"{name} should read {' or '.join(options)}, but there is no such site")
            else:
                plan.reads[name] = chosen


def _assign_roles(plan: Plan, model: PreTrainedModel, modules: Mapping[str, nn.Module]) -> None:
    """Say of every module what becomes of it; whatever is left is a problem."""
    placed: dict[str, list[str]] = {}
    for site in plan.sites:
        placed.setdefault(site.module, []).append(f"site {site.name}")
    home = type(model).__module__.rsplit(".", 1)[0]
    for name, module in modules.items():
        if not name:
            continue
        kind = "" if any(name.startswith(constant + ".") for constant in plan.constants) else _kind(module)
        if name in plan.reads:
            role = f"product, reads {plan.reads[name]}"
        elif name == plan.input_layer:
            role = "input layer, sees floats"
        elif name in plan.constants:
            role = "constant"
        elif kind == "product":
            role = ""
            plan.problems.append(f"product {name} ({type(module).__name__}) reads no site: it has no rule")
        elif kind == "activation":
            role = "quantizer (the site is the ReLU)" if is_relu(module) else "differential operator"
            plan.differential.append(name)
        elif kind:
            role = kind
        elif any(True for _ in module.children()) and _is_glue(module, home):
            role = "container"
        elif any(name.startswith(constant + ".") for constant in plan.constants):
            role = "constant"
        else:
            role = ""
            plan.problems.append(f"module {name} ({type(module).__name__}) has no rule")
        plan.roles[name] = "; ".join([role, *placed.get(name, [])]) if role else ""


def _kind(module: nn.Module) -> str:
    """What a module is by its class alone: a product, an activation, a known harmless thing, or nothing known."""
    kind = type(module).__name__
    if isinstance(module, (nn.Linear, Conv1D, nn.modules.conv._ConvNd, nn.Bilinear)):
        return "product"
    if isinstance(module, nn.Embedding):
        return "embedding, injects once"
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or kind.endswith("RMSNorm"):
        return "differential operator (norm)"
    if isinstance(module, (nn.Dropout, nn.Identity)) or kind.endswith("DropPath"):
        return "passes on"
    if kind.endswith("LayerScale") or isinstance(module, nn.AdaptiveAvgPool1d):
        return "linear, without a product of codes"
    if kind.endswith("Pooler") and not any(True for _ in module.children()):
        return "passes on"  # picks a token, or averages them
    if is_activation(module):
        return "activation"
    return ""


def is_relu(module: nn.Module) -> bool:
    return isinstance(module, nn.ReLU)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an elementwise function of one input, from torch or from transformers."""
    home = type(module).__module__
    return home == "transformers.activations" or (
        home == "torch.nn.modules.activation" and not isinstance(module, (nn.Softmax, nn.MultiheadAttention))
    )


def _is_glue(module: nn.Module, home: str) -> bool:
    """Whether a container's own forward is the architecture's (whose glue the table was written for) or torch's."""
    return type(module).__module__.startswith(home) or isinstance(module, (nn.ModuleList, nn.Sequential))
