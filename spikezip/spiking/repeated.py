"""What is the same in every step of a chunk: computed for one step, and repeated only if somebody asks for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spikezip.spiking.unscaled import Late, plain

_aten = torch.ops.aten
# Operators that do to each step what they do to one, if they leave the first dimension alone.
_SHAPES = frozenset((_aten.view.default, _aten._unsafe_view.default))
_MOVES = frozenset((_aten.transpose.int, _aten.slice.Tensor, _aten.unsqueeze.default, _aten.squeeze.dim))
_EACH = frozenset((_aten.add.Tensor, _aten.mul.Tensor, _aten.clone.default, _aten.detach.default, _aten.alias.default))


class Repeated(Late):
    """A tensor `[n·B, …]` that holds the same `[B, …]` n times.

    Example:
        >>> late = Repeated.of(torch.tensor([[1.0, 2.0]]), 3) + 1
        >>> late.shape, type(late).__name__, late.once
        (torch.Size([3, 2]), 'Repeated', tensor([[2., 3.]]))
        >>> late.sum()
        tensor(15.)
    """

    once: Tensor
    times: int
    made: list[Tensor]

    @staticmethod
    def of(once: Tensor, times: int) -> "Repeated":
        shape = (once.shape[0] * times, *once.shape[1:])
        late: Repeated = Tensor._make_wrapper_subclass(Repeated, shape, dtype=once.dtype, device=once.device)
        late.once, late.times, late.made = once, times, []
        return late

    def scaled(self) -> Tensor:
        if not self.made:
            self.made.append(self.once.repeat(self.times, *[1] * (self.once.ndim - 1)))
        return self.made[0]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types a plain method, and calls a class method
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        late = _first(args)
        if late is not None and not kwargs:
            one_step = _one_step(func, args, late)
            if one_step is not None:
                return Repeated.of(func(*one_step), late.times)
        return super().__torch_dispatch__(func, types, args, kwargs)


def _first(args: tuple[Any, ...]) -> Repeated | None:
    """The repeated tensor among the arguments of an operator; None if one was made, and may have been changed."""
    flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,))]
    found = [x for x in flat if isinstance(x, Repeated)]
    return found[0] if found and not any(x.made for x in found) else None


def _one_step(func: Any, args: tuple[Any, ...], late: Repeated) -> tuple[Any, ...] | None:
    """The arguments for one step, where the operator does the same to each of them; else None."""
    rows, ndim = late.shape[0], late.ndim
    if func in _SHAPES and args[0] is late and len(args[1]) and args[1][0] == rows:
        return late.once, [late.once.shape[0], *args[1][1:]]
    if func in _MOVES and args[0] is late:
        dims = args[1:3] if func is _aten.transpose.int else args[1:2]
        return (late.once, *args[1:]) if dims and all(dim % (ndim + 1) > 0 and dim > 0 for dim in dims) else None
    if func is _aten.cat.default and len(args) == 2 and args[1] > 0:
        parts = [_cut(x, late) for x in args[0]]
        return None if any(x is None for x in parts) else (parts, args[1])
    if func in _EACH:
        cut = [_cut(x, late) if isinstance(x, Tensor) else x for x in args]
        return None if any(x is None for x in cut) else tuple(cut)
    return None


def _cut(x: Tensor, late: Repeated) -> Tensor | None:
    """What an operand is for one step: the same for all samples, or repeated too; None if neither."""
    if isinstance(x, Repeated):
        return x.once if x.times == late.times else None
    if isinstance(x, Late):
        x = plain(x)
    if x.ndim < late.ndim or x.shape[0] == 1:
        return x
    return x[: late.once.shape[0]] if x.shape[0] == late.shape[0] and x.stride(0) == 0 else None
