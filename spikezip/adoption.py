"""Give a model a class of its own that mixes a few methods into its Hugging Face class."""

import functools
from typing import Any

from torch import nn


def adopt_class(model: nn.Module, mixin: Any) -> Any:
    """Change `model.__class__` to a subclass of `mixin` and of its own class, under its own class's name.

    The name stays because transformers looks classes up by name (pipelines, recorded outputs), and the signature of
    `forward` because trainers read it to know which columns a model takes.
    """
    base = own_class(model)
    names: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "own_class": base,
    }
    if "forward" in vars(mixin):

        @functools.wraps(base.forward)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return mixin.forward(self, *args, **kwargs)

        names["forward"] = forward
    model.__class__ = type(base.__name__, (mixin, base), names)
    return model


def own_class(model: nn.Module) -> type[nn.Module]:
    """The Hugging Face class of a model, adopted or not."""
    found: type[nn.Module] = getattr(type(model), "own_class", type(model))
    return found
