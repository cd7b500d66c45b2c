"""Activation–weight products on the integer grid: `y = (codes · W_int) · (s_in · s_w) + b`."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikezip.execution import current
from spikezip.ops import grid, kernels
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.unscaled import Product, Unscaled


@dataclass(frozen=True)
class Part:
    """A weight matrix `[out, in]` whose product with codes is exact when summed in `dtype`."""

    weight: Tensor
    dtype: torch.dtype


def integer_parts(codes: Tensor, bits: int, largest_code: int, what: str) -> list[Part]:
    """Integer weights as int8 matrices with their accumulators: one for 8 bits, high and low half for 16.

    Example:
        >>> [part.weight for part in integer_parts(torch.tensor([[300.0, -1.0]]), 16, 31, "a layer")]
        [tensor([[1, 0]], dtype=torch.int8), tensor([[44, -1]], dtype=torch.int8)]
    """
    matrices = grid.halves(codes) if bits == 16 else (codes,)
    return [Part(m.to(torch.int8), _accumulator(m, largest_code, what)) for m in matrices]


def _accumulator(matrix: Tensor, largest_code: int, what: str) -> torch.dtype:
    # What int8 weights can reach at all is known without looking at them, which would make a GPU wait.
    bound = matrix.shape[1] * 128 * largest_code
    if bound >= 2**24:
        bound = grid.linear_bound(matrix, largest_code)
    return grid.accumulator(bound, f"the product in {what}")


def apply_synapse(
    owner: nn.Module, codes: Tensor, source: Neuron, parts: list[Part], scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The running output of a synapse for the running codes of the site `source`; scaled later, where a neuron does."""
    execution, factor, first = current(), input_factor(source, scale), parts[0]

    def compute() -> Tensor:
        return execution.linear(owner, "0", codes, first.weight, first.dtype, source.largest)

    per_channel = factor is not None and bool(factor.ndim) and factor.dtype == torch.float32
    if len(parts) == 1 and per_channel and first.dtype == torch.float32 and execution.defers(codes, first.weight):
        assert factor is not None
        return Unscaled.of_product(Product(codes, first.weight, source.name, compute), factor, bias)
    total = compute()
    for i, part in enumerate(parts[1:], start=1):
        high = total.to(first.dtype) * 256
        total = high + execution.linear(owner, str(i), codes, part.weight, part.dtype, source.largest)
    on_gpu = total.is_cuda and total.dtype == torch.float32
    if factor is not None and per_channel and (on_gpu or total.dtype == torch.int32):
        if execution.takes_unscaled(total):
            return Unscaled.of(total, factor, bias)
        return grid.scale_bias(total, factor, bias)  # one pass over the data, and not two
    total = total.to(first.dtype) if total.dtype == torch.int32 else total
    y = total if factor is None else scaled(total, factor)
    y = y.to(source.scale.dtype)
    return y if bias is None else (y + bias if factor is None else y.add_(bias))


def input_factor(source: Neuron, scale: Tensor | None) -> Tensor | None:
    """What a sum of codes times weights is multiplied with. A scale per channel of the input is in the weights."""
    if source.per_channel:
        return scale
    return source.step_size if scale is None else source.step_size * scale


def scaled(total: Tensor, factor: Tensor) -> Tensor:
    """`total · factor`, in place where the sums are nobody else's: large tensors are dear to allocate."""
    factor = factor.to(total.dtype)
    return total * factor if current().keeps_sums else total.mul_(factor)


class FrozenWeights(nn.Module):
    """Integer weights with a scale per output channel, or float weights without one, that no longer change."""

    codes: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, name: str, codes: Tensor, scale: Tensor | None, bias: Tensor | None, bits: int | None) -> None:
        super().__init__()
        self.name = name
        self.weight_bits = bits
        stored = codes if bits is None else codes.to(torch.int8 if bits == 8 else torch.int16)
        self.register_buffer("codes", stored)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:
        """The weights as floats, for code that asks a layer for its weight or dtype."""
        if self.scale is None:
            return self.codes
        return self.codes.to(self.scale.dtype) * self.scale.view(-1, *[1] * (self.codes.ndim - 1))

    def leave_grid(self) -> None:
        """Keep the weights as floats from here on, of the same values: their sums depend on the order then."""
        self.codes, self.scale, self.weight_bits = self.weight, None, None


class SpikingLinear(FrozenWeights):
    """A synapse with frozen integer weights `[out, in]`; `weight_bits=None` keeps float weights (the paper's setting).

    It stands for `nn.Linear` and for GPT-2's `Conv1D` alike.

    Example:
        >>> site = Neuron("site", torch.tensor(0.5), lo=-4, hi=3)
        >>> layer = SpikingLinear("layer", torch.tensor([[3.0, 1.0]]), torch.tensor([0.1]), None, 8, site)
        >>> layer(torch.tensor([[1.0, -0.5]]))
        tensor([[0.2500]])
    """

    source: Neuron

    def __init__(
        self,
        name: str,
        codes: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        bits: int | None,
        source: Neuron,
    ) -> None:
        super().__init__(name, codes, scale, bias, bits)
        self.out_features, self.in_features = codes.shape
        link(self, source)
        self._parts: list[Part] | None = None

    def parts(self) -> list[Part]:
        if self._parts is None:
            if self.weight_bits is None:
                self._parts = [Part(self.codes, self.codes.dtype)]
            else:
                floats = self.codes.to(torch.float32)
                self._parts = integer_parts(floats, self.weight_bits, self.source.largest, self.name)
        return self._parts

    def forward(self, x: Tensor) -> Tensor:
        return apply_synapse(self, self.source.read(x), self.source, self.parts(), self.scale, self.bias)

    def leave_grid(self) -> None:
        self._parts = None
        super().leave_grid()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._parts = None  # .to(device) and the like: derived tensors are made anew
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._parts = None
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.in_features} → {self.out_features}, bits={self.weight_bits}, reads {self.source.name!r}"


class SpikingInput(FrozenWeights):
    """The convolution that sees the float input (patch embedding). An engine evaluates it once per input.

    On the grid the input is read in fixed point and summed in float64, which is exact: the result does not depend
    on the batch size.

    Example:
        >>> kernel = torch.tensor([[[[2.0]]]])
        >>> SpikingInput("patches", kernel, torch.tensor([0.5]), None, 8, {"stride": 1})(torch.ones(1, 1, 1, 1))
        tensor([[[[1.]]]])
    """

    def __init__(
        self,
        name: str,
        codes: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        bits: int | None,
        geometry: dict[str, Any],
    ) -> None:
        super().__init__(name, codes, scale, bias, bits)
        self.geometry = geometry

    def forward(self, x: Tensor) -> Tensor:
        return current().inject(self, x, self.evaluate)

    def evaluate(self, x: Tensor) -> Tensor:
        return input_conv(x, self.codes, self.scale, self.bias, self.geometry, self.name)


def input_conv(
    x: Tensor,
    codes: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    geometry: dict[str, Any],
    name: str,
    check: bool = True,
) -> Tensor:
    """A convolution of a float input with integer weights, exact; with float weights (`scale=None`) plain.

    `check` refuses an input so large that sums would not be exact. It makes a GPU wait, so training leaves it out.
    """
    if scale is None:
        return F.conv2d(x, codes, bias, **geometry)
    kernel = codes.to(torch.float64)
    bound: float | Tensor | None = None
    if check:
        bound = grid.largest_sum(kernel) if kernels.is_recording(x) else grid.linear_bound(kernel, 1)
    integers = grid.fixed_point(x, bound, f"the input of {name}")
    total = grid.convolution(integers, kernel, geometry)
    factor = scale.to(torch.float64) * 2.0**-grid.INPUT_FRACTION_BITS
    y = (total * factor.view(1, -1, 1, 1)).to(x.dtype)
    return y if bias is None else y + bias.view(1, -1, 1, 1)


def link(synapse: nn.Module, source: Neuron) -> None:
    """Let a synapse know the site it reads from, without making that site its child."""
    object.__setattr__(synapse, "source", source)
