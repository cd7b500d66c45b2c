"""What would be placed where, as a table; and what no rule covers."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from spikezip.errors import ConfigError, CoverageError
from spikezip.models.plan import Plan, make_plan


@dataclass(frozen=True)
class Coverage:
    """What becomes of every module of a model. Printing it gives the table.

    `complete` says whether the model can be quantized; `problems` says why not; `sites` counts the sites.
    """

    model: str
    rows: tuple[tuple[str, str, str], ...]  # module, class, what becomes of it ("" if there is no rule)
    problems: tuple[str, ...]
    sites: int
    products: int

    @property
    def complete(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        width = max((len(name) for name, _, _ in self.rows), default=0)
        kinds = max((len(kind) for _, kind, _ in self.rows), default=0)
        lines = [f"{n:<{width}}  {k:<{kinds}}  {role or '✗ NO RULE'}" for n, k, role in self.rows]
        lines.append(f"{self.model}: {self.sites} sites, {self.products} products")
        lines += [f"✗ {problem}" for problem in self.problems]
        lines.append(
            "complete" if self.complete else f"{len(self.problems)} problem(s): this model cannot be converted"
        )
        return "\n".join(lines)

    __repr__ = __str__


def coverage(model: PreTrainedModel) -> Coverage:
    """Show what `quantize` would place where, without changing the model.

    Example:
        >>> import spikezip, transformers
        >>> config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> report = spikezip.coverage(transformers.ViTModel(config))
        >>> report.complete, report.sites
        (True, 12)
    """
    return describe(model, _plan(model))


def checked_plan(model: PreTrainedModel) -> Plan:
    """The plan for a model, or a `CoverageError` with the table."""
    plan = _plan(model)
    if plan.problems:
        raise CoverageError(f"{type(model).__name__} is not covered:\n{describe(model, plan)}")
    return plan


def describe(model: PreTrainedModel, plan: Plan) -> Coverage:
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    rows = tuple((name, classes[name], role) for name, role in plan.roles.items())
    return Coverage(type(model).__name__, rows, tuple(plan.problems), len(plan.sites), len(plan.reads))


def _plan(model: PreTrainedModel) -> Plan:
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"a transformers PreTrainedModel is needed, not {type(model).__name__}")
    if any(hasattr(module, "site_out") for module in model.modules()):
        raise ConfigError("this model is quantized already; start from the float model")
    return make_plan(model)
