"""Tensors of integers whose scale is still to come: products, and what neurons pass on.

Between a product and the neurons behind it a model only views, splits into heads, or transposes; and the next product
wants the bare codes of a site, not their values. `Unscaled` follows such moves; everything else that anybody does with
it happens to the scaled tensor, made then and kept. A product may wait as well: neurons on a GPU take it whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikezip.ops import grid, kernels

_aten = torch.ops.aten
_VIEWS = frozenset(
    (
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.detach.default,
        _aten.alias.default,
        _aten.slice.Tensor,
        _aten.select.int,
        _aten.expand.default,
    )
)
# What comes out of these holds the same elements, in another place.
_COPIES = frozenset((_aten.clone.default, _aten.roll.default, _aten.index_select.default))


class Late(Tensor):
    """A tensor that is computed when somebody needs it; it looks like the one it stands for."""

    def scaled(self) -> Tensor:
        """The tensor that this stands for."""
        raise NotImplementedError  # no abstract class: tensors have a metaclass of their own

    # Only operators are of interest here, not torch's functions around them; torch offers this name for that.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # not typed as it is used

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types a plain method, and calls a class method
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*_scaled(args), **_scaled(kwargs or {}))


class Product(NamedTuple):
    """A product of codes with weights `[out, in]` that has not been computed yet, and how to compute it."""

    codes: Tensor
    weight: Tensor
    source: str  # the site whose codes these are
    compute: Callable[[], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-1], len(self.weight))


class Unscaled(Late):
    """`total · scale + bias` of integers, not computed yet; looks like the tensor it stands for.

    The scale is one number, or one for each channel (the last dimension of the total).

    Example:
        >>> total = torch.tensor([[2, 4]], dtype=torch.int32)
        >>> late = Unscaled.of(total, torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.0]))
        >>> late.shape, late.view(2, 1).moved.tolist()
        (torch.Size([1, 2]), [[2], [4]])
        >>> late + 0
        tensor([[2., 1.]])
    """

    made: dict[str, Tensor]  # the total and the scaled tensor, once somebody needed them: shared by all views
    product: Product | None  # what the total is, if it waits to be computed
    compute: Callable[[], Tensor] | None  # how
    scale: Tensor
    bias: Tensor | None
    site: Any  # whose codes these are, if a site passed them on
    moved: Tensor  # the total as it has been viewed since; of a product, its shape alone
    moves: tuple[Callable[[Tensor], Tensor], ...]

    @staticmethod
    def of(total: Tensor, scale: Tensor, bias: Tensor | None, site: Any = None) -> "Unscaled":
        return _make({"total": total}, None, None, scale, bias, site, total, ())

    @staticmethod
    def of_product(product: Product, scale: Tensor, bias: Tensor | None) -> "Unscaled":
        moved = torch.empty(product.shape, dtype=torch.int32, device="meta")
        return _make({}, product, product.compute, scale, bias, None, moved, ())

    @staticmethod
    def later(shape: tuple[int, ...], compute: Callable[[], Tensor], scale: Tensor, site: Any) -> "Unscaled":
        """Codes of a site that are computed only if somebody asks for them."""
        return _make({}, None, compute, scale, None, site, torch.empty(shape, dtype=torch.int8, device="meta"), ())

    @property
    def waits(self) -> bool:
        """Whether nobody has computed the total yet."""
        return "total" not in self.made

    @property
    def changed(self) -> bool:
        """Whether the scaled tensor was made, and may have been changed since by whoever has it."""
        whole = self.made.get("whole")
        return whole is not None and (whole.is_inference() or whole._version > 0)

    def total(self) -> Tensor:
        """The integers as they are now: computed, if that was still to come."""
        if "total" not in self.made:
            assert self.compute is not None  # one of the two is there from the start
            self.made["total"] = self.compute()
        return self._replay(self.made["total"])

    def scaled(self) -> Tensor:
        if "whole" not in self.made:
            self.total()
            self.made["whole"] = grid.scale_bias(self.made["total"], self.scale, self.bias)
        return self._replay(self.made["whole"])

    def _replay(self, x: Tensor) -> Tensor:
        for move in self.moves:
            x = move(x)
        return x

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types a plain method, and calls a class method
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _VIEWS and isinstance(args[0], Unscaled):
            late, rest = args[0], args[1:]

            def move(x: Tensor) -> Tensor:
                result: Tensor = func(x, *rest, **kwargs)
                return result

            moves = (*late.moves, move)
            return _make(
                late.made, late.product, late.compute, late.scale, late.bias, late.site, move(late.moved), moves
            )
        if (
            func in _COPIES
            and isinstance(args[0], Unscaled)
            and args[0].site is not None
            and not args[0].scale.ndim
            and not args[0].changed
        ):
            late = args[0]
            return Unscaled.of(func(late.total(), *args[1:], **kwargs), late.scale, None, late.site)
        if func is _aten.add.Tensor and not kwargs and len(args) == 2:
            return _add(*args)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Sum(Late):
    """A tensor plus the values of codes, not computed yet: a residual sum, which a LayerNorm may take with it.

    Example:
        >>> late = Sum.of(torch.tensor([[1.0, 2.0]]), torch.tensor([[2, 4]], dtype=torch.int8), torch.tensor(0.5))
        >>> late.shape, late * 1
        (torch.Size([1, 2]), tensor([[2., 4.]]))
    """

    x: Tensor
    codes: Tensor
    scale: Tensor
    made: list[Tensor]  # the sum, once it is there

    @staticmethod
    def of(x: Tensor, codes: Tensor, scale: Tensor) -> "Sum":
        late: Sum = Tensor._make_wrapper_subclass(Sum, x.shape, dtype=x.dtype, device=x.device)
        late.x, late.codes, late.scale, late.made = x, codes, scale, []
        return late

    def scaled(self) -> Tensor:
        if not self.made:
            self.made.append(grid.add_scaled(self.x, self.codes, self.scale))
        return self.made[0]


def plain(x: Tensor) -> Tensor:
    """The tensor itself: scaled, if that was still to come.

    Example:
        >>> plain(Unscaled.of(torch.tensor([[2, 4]], dtype=torch.int32), torch.tensor([0.5, 0.25]), None))
        tensor([[1., 1.]])
    """
    return x.scaled() if isinstance(x, Late) else x


def _add(a: Any, b: Any) -> Any:
    """A sum, such as that of a residual: the values of codes are added as they are made."""
    late, other = (a, b) if isinstance(a, Unscaled) else (b, a)
    other = _scaled(other)
    fits = isinstance(other, Tensor) and other.shape == late.shape and other.dtype == late.dtype
    if fits and late.site is not None and not late.scale.ndim and "whole" not in late.made:
        if kernels.on_gpu(other) and other.dtype == torch.float32:
            return Sum.of(other, late.total(), late.scale)
        return grid.add_scaled(other, late.total(), late.scale)
    return _aten.add.Tensor(late.scaled(), other)


def _make(
    made: Any, product: Any, compute: Any, scale: Tensor, bias: Any, site: Any, moved: Tensor, moves: Any
) -> Unscaled:
    late: Unscaled = Tensor._make_wrapper_subclass(
        Unscaled, moved.shape, strides=moved.stride(), dtype=scale.dtype, device=scale.device
    )
    late.made, late.product, late.compute = made, product, compute
    late.scale, late.bias, late.site = scale, bias, site
    late.moved, late.moves = moved, moves
    return late


def _scaled(x: Any) -> Any:
    if isinstance(x, Late):
        return x.scaled()
    if isinstance(x, dict):
        return {key: _scaled(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_scaled(value) for value in x)
    return x
