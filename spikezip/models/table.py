"""What has to be known about an architecture: which modules carry sites, and which site each product reads.

Names are those of transformers without the base model's prefix (`vit.layers.0` is `layers.0`), so that a model with a
head and a bare backbone share a table. In patterns `*` stands for one part of a name; in the site that a product reads,
`*` is the same part again, `*-1` the index before, `$` the last index. A leading `?` marks a row that need not match.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

INPUT_SITE = "in"
UNSIGNED_INPUT_SITE = "in:unsigned"


@dataclass(frozen=True)
class Table:
    """One architecture.

    Args:
        model_types: `config.model_type` of the models this table serves.
        entry: the site where the input enters the spiking network (a module's output).
        outputs: modules whose output carries a site.
        activations: activation modules whose output carries a site: unsigned after ReLU, else signed.
        attention: modules that call the attention function; they get the sites q, k, v, p, o.
        reads: product → the site that it reads; several are alternatives, the first that exists counts. `in` gives
            the product a site of its own on its input.
        heads: the same, by the suffix of the model's class name.
        head_outputs: modules of a head whose output carries a site, by the same suffix.
        input_layer: the convolution that sees the float input, for vision models.
        constants: modules that compute constants (rotary angles, position biases), where products are allowed.
        folds: parameter that scales a product's output → that product; it is multiplied into the weights, so that the
            product's site comes after the scaling.
        aliases: `(regular expression, replacement)` from older module names to those of the table.
    """

    model_types: tuple[str, ...]
    entry: str
    outputs: tuple[str, ...]
    activations: tuple[str, ...]
    attention: str
    reads: Mapping[str, str | tuple[str, ...]]
    heads: Mapping[str, Mapping[str, str | tuple[str, ...]]]
    head_outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    input_layer: str | None = None
    constants: tuple[str, ...] = ()
    folds: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[tuple[str, str], ...] = ()

    def canonical(self, name: str, prefix: str) -> str:
        """The table's name of a module that the installed transformers calls `name`."""
        name = name.removeprefix(prefix + ".") if prefix else name
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name


def match(pattern: str, name: str) -> tuple[str, ...] | None:
    """What the stars of `pattern` stand for in `name`, or None if it does not match.

    Example:
        >>> match("layers.*.blocks.*.mlp", "layers.0.blocks.3.mlp")
        ('0', '3')
        >>> match("layers.*.mlp", "layers.0.attention.mlp") is None
        True
    """
    pattern = pattern.removeprefix("?")
    expression = re.escape(pattern).replace(r"\*", r"([^.]+)")
    found = re.fullmatch(expression, name)
    return found.groups() if found else None


def resolve(target: str, stars: tuple[str, ...], names: Iterable[str]) -> str | None:
    """The name that `target` means, given what the stars of its product stand for and which names exist.

    Example:
        >>> resolve("layer.*-1.norm", ("2",), ["layer.0.norm", "layer.1.norm"])
        'layer.1.norm'
        >>> resolve("layer.$.norm", (), ["layer.0.norm", "layer.11.norm"])
        'layer.11.norm'
        >>> resolve("layer.*-1.norm", ("0",), ["layer.0.norm"]) is None
        True
    """
    known = set(names)
    if "$" in target:
        pattern = target.replace("$", "*")
        found = [(tuple(map(int, groups)), name) for name in known if (groups := match(pattern, name))]
        return max(found)[1] if found else None
    remaining = iter(stars)
    parts = []
    for part in target.split("."):
        if part == "*":
            part = next(remaining)
        elif part == "*-1":
            part = str(int(next(remaining)) - 1)
        parts.append(part)
    name = ".".join(parts)
    return name if name in known else None
