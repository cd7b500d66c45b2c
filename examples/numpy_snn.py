"""A spiking network in NumPy: what a saved network computes, bit for bit, to be read from top to bottom.

    spikezip convert zoo/sst2-minilm snn/
    python examples/numpy_snn.py snn/ input.npz                # until nothing fires: T_eq, spikes, the output
    python examples/numpy_snn.py snn/ input.npz --steps 32 --hash

It is for those who build the network in hardware, or in a simulator of their own. It needs NumPy 2 and nothing else: no
spikezip, no torch. `input.npz` holds the inputs of the network by name.

All that follows is made of whole numbers and of single IEEE operations: + − × ÷ √, comparisons, rounding half to even,
conversions. They are done in the order of the parentheses, and never two of them fused into one. Each has one right
result, and so has the network. Activations are float32; a number that a program adds to them (`0.5`) is a float32, too.
What is computed in float64 is widened before, and rounded to float32 once, at the end.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray
f32, f64, i64 = np.float32, np.float64, np.int64

# ------------------------------------------------------------------------------------------------- reading the files


class UnsupportedError(Exception):
    """The folder holds something that this file does not compute."""


DTYPES = {name: np.dtype(name) for name in ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"]}
STORED = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}

# Kind of a node → its operands, which are names of nodes; and what a field is where the file leaves it out.
OPERANDS = {
    "Input": (), "Weight": (), "Function": (), "Linear": ("x", "weight", "bias"), "Matmul": ("a", "b"),
    "Convolution": ("x", "weight", "bias"), "Site": ("u",), "Values": ("codes",), "Grid": ("weight",), "Rows": ("x",),
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "Weight": {"bits": None}, "Function": {"args": [], "kwargs": {}}, "Linear": {"bias": None, "groups": 1},
    "Convolution": {"bias": None, "stride": [], "padding": [], "dilation": [], "groups": 1},
    "Matmul": {"scaling": 1.0}, "Site": {"lo": 0, "hi": 0}, "Grid": {"bits": 8}, "Rows": {"bits": 8},
}  # fmt: skip
PRODUCTS = ("Linear", "Convolution", "Matmul")
Node = SimpleNamespace  # a line of program.json: kind, name, shape, dtype, and what its kind needs


@dataclass
class Network:
    """Nodes in the order of execution, and their tensors.

    `symbols` gives for each symbol in a shape the input and the dimension to read it from; `batch` counts samples.
    `moving` are the values that change over time: codes of sites, and all that depends on them.
    """

    nodes: dict[str, Node]
    tensors: dict[str, Array]
    symbols: dict[str, tuple[str, int]]
    batch: str | None
    output: Any
    moving: set[str]

    def source(self, name: str) -> Any:
        """The site, or the weight on a grid, whose integers a value consists of, moved or not; None if it has none."""
        node = self.nodes[name]
        while node.kind == "Function" and short(node.op) in MOVES:
            node = self.nodes[reads(node)[0]]
        on_grid = node.kind in ("Site", "Grid") or (node.kind == "Weight" and node.bits is not None)
        return node if on_grid else None

    def step_size(self, site: Node) -> Array:
        """The scale s of a site, the threshold of its neurons: one number, or one for each channel."""
        scale = self.tensors[f"{site.name}.site_scale"]
        return scale if scale.size > 1 else scale.reshape(())


def read_network(folder: str | Path) -> Network:
    """The spiking network in a folder of format 2."""
    folder = Path(folder)
    manifest = json.loads((folder / "spikezip.json").read_bytes())
    if manifest["format_version"] != 2:
        raise UnsupportedError(f"{folder} has format {manifest['format_version']}; this file reads format 2")
    if manifest["kind"] != "snn":
        raise UnsupportedError(
            f"{folder} holds a quantized network. Make a spiking network of it: spikezip convert {folder} snn/"
        )
    tensors: dict[str, Array] = {}
    for name in manifest["files"]:
        if name.endswith(".safetensors"):
            tensors |= read_safetensors(folder / name)
    for key, how in manifest["packed"].items():  # a table of floats that is integers times a scale for each row
        codes, scale = tensors.pop(f"{key}.codes"), tensors.pop(f"{key}.scale")
        rows = np.swapaxes(codes, 0, how["dim"]).astype(f32) * scale.reshape(-1, *[1] * (codes.ndim - 1))
        tensors[key] = np.swapaxes(rows, 0, how["dim"])
    tensors |= {key: tensors[owner] for key, owner in manifest["tied"].items()}
    program = json.loads((folder / "program.json").read_bytes())
    nodes = {entry["name"]: Node(**{**DEFAULTS.get(entry["kind"], {}), **entry}) for entry in program["nodes"]}
    network = Network(nodes, tensors, program["symbols"], program["batch"], program["output"], set())
    for node in nodes.values():
        if node.kind == "Site" or any(name in network.moving for name in reads(node)):
            network.moving.add(node.name)
        check(network, node)
    return network


def read_safetensors(path: Path) -> dict[str, Array]:
    """The length of the header in 8 bytes, the header in JSON, then the numbers, little endian, in C order."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = {name: entry for name, entry in json.loads(content[8:begin]).items() if name != "__metadata__"}
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        numbers = np.frombuffer(content[begin + first : begin + last], STORED[entry["dtype"]])
        found[name] = numbers.reshape(entry["shape"])
    return found


def references(x: Any) -> Iterator[str]:
    """The names of nodes in arguments: `{"ref": NAME}`, in lists and dicts of any depth."""
    if isinstance(x, dict) and "ref" in x:
        yield x["ref"]
    elif isinstance(x, (dict, list)):
        for value in x.values() if isinstance(x, dict) else x:
            yield from references(value)


def reads(node: Node) -> list[str]:
    """The names of the nodes that a node reads, its operands first."""
    if node.kind == "Function":
        return list(references([node.args, node.kwargs]))
    return [getattr(node, slot) for slot in OPERANDS[node.kind] if getattr(node, slot) is not None]


def check(network: Network, node: Node) -> None:
    """Say what this file does not know, and where, before anything is computed."""
    where = f"{node.name!r}" + (f" of {node.module!r}" if getattr(node, "module", "") else "")
    if node.kind == "Function" and short(node.op) not in KNOWN:
        raise UnsupportedError(f"{where} is the operation {node.op}: this file does not know it")
    if node.dtype not in DTYPES or (node.kind == "Site" and node.dtype != "float32"):
        raise UnsupportedError(f"{where} is in {node.dtype}: this file computes networks in float32")
    operands = reads(node)[:2] if node.kind in PRODUCTS and node.name in network.moving else []
    if None in map(network.source, operands or (reads(node)[1:2] if node.kind == "Convolution" else [])):
        raise UnsupportedError(f"{where} is a product of floats, whose sum has an order: quantize with weight_bits")


def short(op: str) -> str:
    """The name of an operation: `aten.relu.default` is `relu`, `aten.add.Tensor` is `add.Tensor`."""
    return op.removeprefix("aten.").removeprefix("spikezip.").removesuffix(".default")


# A size that depends on the batch: `["symbol", NAME]`, or an operation on sizes and numbers.
SIZES: dict[str, Callable[..., Any]] = {
    "+": lambda *args: sum(args), "*": lambda *args: math.prod(args), "max": max, "min": min,
    "//": lambda a, b: a // b, "/": lambda a, b: a / b, "%": lambda a, b: a % b, "**": lambda a, b: a**b,
    "float": float, "int": int, "floor": lambda a: int(a // 1), "ceil": lambda a: -int(-a // 1),
}  # fmt: skip
Sizes = Mapping[str, int]


def size(x: Any, sizes: Sizes) -> Any:
    """A number as it is, a size for this batch.

    Example:
        >>> size(["*", 4, ["symbol", "b"]], {"b": 3})
        12
    """
    if not isinstance(x, list):
        return x
    return sizes[x[1]] if x[0] == "symbol" else SIZES[x[0]](*(size(arg, sizes) for arg in x[1:]))


def bound(x: Any, values: Mapping[str, Any], sizes: Sizes) -> Any:
    """Arguments with values in the place of references, and of what JSON has no word for."""
    if isinstance(x, list):
        return [bound(value, values, sizes) for value in x]
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    if kind == "dict":
        return {key: bound(entry, values, sizes) for key, entry in value.items()}
    if kind == "ref":
        return values[value]
    return size(value, sizes) if kind == "size" else DTYPES[value] if kind == "dtype" else float(value)


# ----------------------------------------------------------------------------------------------- parts of a float64


def wide(x: Any) -> Array:
    return np.asarray(x).astype(f64)


def power_of_two(k: Array) -> Array:
    """`2^k` for whole k from −1022 to 1023: the bits of the exponent."""
    return ((np.asarray(k).astype(i64) + 1023) << 52).view(f64)


def exponent_above(x: Array) -> Array:
    """The smallest whole e with `|x| < 2^e`; 0 for zero, and for what is not finite.

    Example:
        >>> exponent_above(np.array([0.0, 0.5, 0.75, 1.0, -3.0])).tolist()
        [0, 0, 0, 1, 2]
    """
    return np.frexp(np.where(np.isfinite(x), x, 0))[1].astype(i64)


root = np.sqrt  # rounded correctly, as IEEE asks for

# ---------------------------------------------------------------------------------- elementary functions, in float64

# Polynomials, the highest coefficient first; ln 2 in two parts, the first of 32 bits.
LOG2_E, LN2_HI, LN2_LO = 1.4426950408889634, 0.6931471806019545, -4.2009150726810846e-11
EXP = (
    2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06, 2.4801521295954376e-05,
    0.00019841269863053618, 0.0013888888917213717, 0.008333333333330062, 0.04166666666662413, 0.16666666666666669,
    0.5000000000000001,
)  # fmt: skip
LOG = (
    0.14616585424888623, 0.15331710618210773, 0.18182889455674947, 0.22222211130259878, 0.2857142862600327,
    0.39999999999899444, 0.666666666666667,
)  # fmt: skip
ERF = (
    1.4725865480556744e-06, -1.4845849259707869e-05, 0.00012053335124353741, -0.0008548297753674966,
    0.00522397737302147, -0.026866170632887928, 0.11283791670925353, -0.37612638903183476, 1.1283791670955126,
)  # fmt: skip
ERFC = (
    -6.606630030954918e-09, 7.461551723360206e-09, 1.0506935915995339e-07, -9.314264318554981e-08,
    -8.268845944455933e-07, 1.4445805985487228e-06, 4.683431327222623e-06, -1.887396165570362e-05,
    -3.6314238931910024e-06, 0.00017681785329035966, -0.0004550534645094846, -0.00028096004828847605,
    0.00611205575389842, -0.02637005317568621, 0.07638151490204452, -0.17401093725244177, 0.3308515878783134,
    -0.5408538313128007, 0.7732087022652312, -0.9765487290808864, 1.095995661000491,
)  # fmt: skip
SIN = (
    1.5917988979397435e-10, -2.5051129896450185e-08, 2.7557316093198404e-06, -0.00019841269836740532,
    0.008333333333330936, -0.16666666666666666,
)  # fmt: skip
COS = (
    -1.136789634714201e-11, 2.0875885001628906e-09, -2.7557315555381283e-07, 2.480158729366189e-05,
    -0.0013888888888880734, 0.04166666666666664, -0.5,
)  # fmt: skip


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    result = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        result = result * x + c
    return result


def halved_exp(x: Array) -> tuple[Array, Array]:
    """`s` and a whole `k` with `e^x = (1 + s) · 2^k`."""
    k = np.rint(x * LOG2_E)
    r = (x - k * LN2_HI) - k * LN2_LO
    return r + (r * r) * polynomial(r, EXP), k.astype(i64)


def scaled(x: Array, k: Array) -> Array:
    """`x · 2^k`, in two steps: one factor alone might be too large or too small."""
    return x * power_of_two(k >> 1) * power_of_two(k - (k >> 1))


def exp(x: Array) -> Array:
    s, k = halved_exp(np.clip(x, -800, 800))
    return scaled(s + 1, k)


def expm1(x: Array) -> Array:
    s, k = halved_exp(np.clip(x, -60, 800))
    return np.where(x == 0, x, np.where(k == 0, s, scaled(s + 1, k) - 1))


def log(x: Array) -> Array:
    """`x = 2^e · m`, from its bits, with m from √½ to √2; `log m` from `s = (m − 1)/(m + 1)`."""
    tiny = x < 2.0**-1022
    bits = np.where(tiny, x * 2.0**54, x).view(i64) + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)  # those of 1 and of √½
    e = ((bits >> 52) - 1023).astype(f64) - np.where(tiny, 54.0, 0.0)
    f = ((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(f64) - 1
    s = f / (f + 2)
    result = e * LN2_HI + (e * LN2_LO + (s * 2 + s * ((s * s) * polynomial(s * s, LOG))))
    result = np.where((x > 0) & (x < np.inf), result, x)  # infinity, and what is no number
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, result))


def log1p(x: Array) -> Array:
    u = x + 1
    result = np.where((u > 0) & (u < np.inf), log(u) + (x - (u - 1)) / u, log(u))
    return np.where(u == 1, x, result)


def log1p_exp(x: Array) -> Array:
    """`log(1 + e^x)`, for x of any size."""
    return np.maximum(x, 0) + log1p(exp(-np.abs(x)))


def power(x: Array, y: float) -> Array:
    """`x^y`: a root, a product by repeated squaring, or by the logarithm."""
    n = int(abs(y)) if y == math.floor(y) else -1
    if abs(y) == 0.5:
        return root(x) if y > 0 else 1 / root(x)
    if 0 <= n <= 64:
        result, square = np.ones_like(x), x
        for bit in range(n.bit_length()):
            square = square * square if bit else square
            result = result * square if n >> bit & 1 else result
        return 1 / result if y < 0 else result
    result = exp(y * log(np.abs(x)))
    result = np.where(np.signbit(x) & (n % 2 == 1 and n > 0), -result, result)
    return np.where(x == 1, 1.0, np.where((x < 0) & (x > -np.inf) & (n < 0), np.nan, result))


def tanh(x: Array) -> Array:
    e = expm1(np.abs(x) * -2)
    return np.copysign(-e / (e + 2), x)


def sigmoid(x: Array) -> Array:
    return 1 / (exp(-x) + 1)


def upper_erfc(y: Array) -> Array:
    """`erfc(y)` for `y ≥ 0`: `e^(−y²)` times something that varies slowly."""
    y = np.minimum(y, 28)
    inverse = 1 / (y + 4)
    return exp(-(y * y)) * (inverse * polynomial((y - 4) * inverse, ERFC))


def erfc(x: Array) -> Array:
    return np.where(x < 0, 2 - upper_erfc(np.abs(x)), upper_erfc(np.abs(x)))


def erf(x: Array) -> Array:
    large = np.copysign(1 - upper_erfc(np.abs(x)), x)
    return np.where(np.abs(x) < 0.5, x * polynomial(x * x, ERF), large)


def gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "none":
        return (x * 0.5) * erfc(x * -0.7071067811865476)
    u = (x + ((x * x) * x) * 0.044715) * 0.7978845608028654  # √(2/π)
    return x * sigmoid(u * 2)


def sin_cos(x: Array) -> tuple[Array, Array]:
    """From `x = r + k · π/2`, with π/2 in three parts."""
    if (np.isfinite(x) & (np.abs(x) > 2.0**20)).any():
        raise UnsupportedError("sines of numbers beyond 2^20 (spikezip/ops/elementary says what they are)")
    k = np.rint(x * (2 / math.pi))
    r = ((x - k * 1.5707963267341256) - k * 6.077100506303966e-11) - k * 2.0222662487959506e-21
    z, quadrant = r * r, k.astype(i64)
    sine, cosine = r * (z * polynomial(z, SIN) + 1), z * polynomial(z, COS) + 1
    swapped = (quadrant & 1) == 1
    first, second = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where((quadrant & 2) == 2, -first, first), np.where(((quadrant + 1) & 2) == 2, -second, second)


# ----------------------------------------------------------------------------------------------- sums without an order


def on_integers(x: Array, axes: tuple[int, ...], bits: int = 40) -> tuple[Array, Array]:
    """Values as whole numbers in float64, and their unit: `2^−bits` of the largest value along the axes, rounded up.

    What is not finite stays as it is.
    """
    x = wide(x)
    if not x.size:
        return x, np.ones([1] * x.ndim)
    e = np.clip(exponent_above(np.abs(x).max(axes, keepdims=True)), -900, 900)
    return np.where(np.isfinite(x), np.rint(x * power_of_two(bits - e)), x), power_of_two(e - bits)


def total(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """The sum along some axes, in float64. Added are whole numbers of 64 bits: their sum has no order."""
    whole, unit = on_integers(x, axes)
    finite = np.isfinite(whole)
    found = np.where(finite, whole, 0).astype(i64).sum(axes, keepdims=True).astype(f64) * unit
    found = found if finite.all() else found + np.where(finite, 0, whole).sum(axes, keepdims=True)
    return found if keepdims else found.squeeze(axes)


def mean(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    found = total(x, axes, keepdims)
    return found / f64(x.size // max(found.size, 1))


def running_total(x: Array, axis: int) -> Array:
    """The sums of all values up to each one, in float64."""
    whole, unit = on_integers(x, (axis,))
    return whole.astype(i64).cumsum(axis).astype(f64) * unit


def float_product(a: Array, b: Array) -> Array:
    """A matrix product of floats, in float64. Only constants need it, such as the angles of rotary embeddings.

    Operands have 26 bits of the largest in their row or column, in halves of 13: float64 holds sums of their products.
    """
    (a, unit_a), (b, unit_b) = on_integers(a, (-1,), 26), on_integers(b, (-2,), 26)
    high_a, high_b = np.floor(a * 2.0**-13), np.floor(b * 2.0**-13)
    low_a, low_b = a - high_a * 2.0**13, b - high_b * 2.0**13
    middle = high_a @ low_b + low_a @ high_b
    return (((high_a @ high_b) * 2.0**13 + middle) * 2.0**13 + low_a @ low_b) * unit_a * unit_b


# ---------------------------------------------------------------------------------------------- softmax and the norms


def softmax(x: Array) -> Array:
    """`exp(x − max) / sum` over the last axis, in float32; the sum is one of whole numbers.

    Example:
        >>> softmax(np.array([0.0, 0.0, -np.inf], np.float32)).tolist()
        [0.5, 0.5, 0.0]
    """
    units = f32(2.0**32 - 4096)  # whole units of the largest exponential
    most = x.max(-1, keepdims=True)
    shift = np.where(np.abs(most) < 256, f32(0), most)
    k_most, r_most = powers_of_e(most - shift)
    k, r = powers_of_e(np.maximum(x - shift, (k_most - f32(152)) * f32(0.6931471824645996)))
    below = np.clip(k - k_most, -152, 0)
    power = (units / near_one(r_most)).astype(f64) * power_of_two(below)  # needs no rounding
    e = np.where(below > -152, near_one(r) * power.astype(f32), f32(0))
    total = np.floor(e + f32(0.5)).sum(-1, keepdims=True, dtype=f64)
    return e * (f32(1) / total.astype(f32))


def powers_of_e(x: Array) -> tuple[Array, Array]:
    """`k` and `r` with `x = k · ln 2 + r`, in float32."""
    magic = f32(1.5 * 2**23)  # once it is added, there is no place for bits below 1
    k = (x * f32(1.4426950216293335) + magic) - magic
    return k, (x - k * f32(0.693359375)) - k * f32(-2.12194440e-4)


def near_one(r: Array) -> Array:
    """`exp(r)` in float32, for `|r| ≤ ln 2 / 2`."""
    q = np.full_like(r, 0.008312494494020939)
    for c in (0.04189039766788483, 0.16667115688323975, 0.499992311000824):
        q = q * r + f32(c)
    return ((r * r) * q + r) + f32(1)


def layer_norm(
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    _: Any = 0,
) -> Array:
    """LayerNorm over the last axes, as many as `shape` has, in float32; its sums are sums of whole numbers.

    Example:
        >>> layer_norm(np.array([[1.0, 3.0]], np.float32), [2], eps=0.0).tolist()
        [[-1.0, 1.0]]
    """
    if len(shape) > 1:
        weight, bias = (None if t is None else t.reshape(-1) for t in (weight, bias))
        return layer_norm(x.reshape(*x.shape[: -len(shape)], -1), [-1], weight, bias, eps).reshape(x.shape)
    largest = np.abs(x).max(-1, keepdims=True)
    shift = np.clip(24 - exponent_above(largest), -100, 100)
    q = (x * power_of_two(shift).astype(f32)).astype(i64)  # cut off, at a 2^24th of the largest
    share, unit = 1 / x.shape[-1], power_of_two(-shift)
    middle = q.sum(-1, keepdims=True).astype(f64) * share
    variance = (q * q).sum(-1, keepdims=True).astype(f64) * share - middle * middle
    variance = np.maximum(variance, 0) * unit * unit + eps
    middle = np.where(np.isfinite(largest), middle * unit, np.nan)
    if x.shape[-1] > 1 << 14:  # so many squares might not fit into 63 bits
        middle = mean(x, (-1,), keepdims=True)
        variance = mean((x - middle) * (x - middle), (-1,), keepdims=True) + eps
    narrow = variance.astype(f32)
    deviation = np.where(np.isfinite(narrow), f32(1) / root(narrow), f32(np.nan))  # zeros would not be noticed
    y = (x - middle.astype(f32)) * deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def group_norm(x: Array, groups: int, weight: Array | None, bias: Array | None, eps: float, _: bool = True) -> Array:
    """GroupNorm, in float64."""
    grouped, per_channel = wide(x).reshape(len(x), groups, -1), (1, -1, *[1] * (x.ndim - 2))
    apart = grouped - mean(grouped, (-1,), keepdims=True)
    y = (apart / root(mean(apart * apart, (-1,), keepdims=True) + eps)).reshape(x.shape)
    y = y if weight is None else y * wide(weight).reshape(per_channel)
    return y if bias is None else y + wide(bias).reshape(per_channel)


# ---------------------------------------------------------------------------- operations on tensors, by ATen's names


def at(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    """The index of what lies there along a dimension."""
    return (slice(None),) * (dim % x.ndim) + (index,)


def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[at(x, dim, slice(start, end, step))]


def resized(x: Array, first: int, last: int, sizes: Sequence[int]) -> Array:
    """The same numbers with other sizes in place of the dimensions from `first` to `last`."""
    return x.reshape(*x.shape[: first % x.ndim], *sizes, *x.shape[last % x.ndim + 1 :])


def expand(x: Array, sizes: Sequence[int]) -> Array:
    known = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [a if b == -1 else b for a, b in zip(known, sizes, strict=True)])


def squeeze(x: Array, dims: int | Sequence[int]) -> Array:
    return x.squeeze(tuple(d for d in ([dims] if isinstance(dims, int) else dims) if x.shape[d] == 1))


def pad(x: Array, pads: Sequence[int], value: float = 0) -> Array:
    """Pads, before and after, from the last dimension on; a negative one cuts off."""
    pairs = [(0, 0)] * (x.ndim - len(pads) // 2) + [(pads[i], pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]
    inside = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True))
    return np.pad(x[inside], [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)


def gather(x: Array, dim: int, index: Array) -> Array:
    inside = tuple(slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(index.shape))
    return np.take_along_axis(x[inside], index, dim)


def indices(given: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in given)


def windows(x: Array, dim: int, width: int, step: int, apart: int = 1) -> Array:
    """Windows along a dimension, of values that lie `apart`; a window becomes the last dimension."""
    seen = sliding_window_view(x, apart * (width - 1) + 1, dim)
    return seen[at(x, dim, slice(None, None, step))][..., ::apart]


# Elements are moved, repeated or left out, and not changed: codes stay codes.
MOVES: dict[str, Callable[..., Array]] = {
    "reshape": lambda x, sizes: x.reshape(sizes),
    "flatten.using_ints": lambda x, first=0, last=-1: resized(x, first, last, [-1]),
    "unflatten.int": lambda x, dim, sizes: resized(x, dim, dim, sizes),
    "transpose.int": np.swapaxes, "permute": np.transpose, "t": np.transpose, "numpy_T": np.transpose,
    "unsqueeze": lambda x, dim: np.expand_dims(x, dim),
    "squeeze": np.squeeze, "squeeze.dim": squeeze, "squeeze.dims": squeeze,
    "expand": expand, "broadcast_to": expand, "repeat": np.tile,
    "repeat_interleave.self_int": lambda x, n, dim=None: np.repeat(x, n, dim),
    "roll": lambda x, shifts, dims: np.roll(x, shifts, tuple(dims)),
    "flip": lambda x, dims: np.flip(x, tuple(dims)),
    "unfold": windows,
    "dropout": lambda x, *_: x,  # only training drops anything
    "slice.Tensor": cut,
    "select.int": lambda x, dim, i: x[at(x, dim, i)],
    "index_select": lambda x, dim, index: np.take(x, index, dim),
    "index.Tensor": lambda x, given: x[indices(given)],
    "gather": gather, "constant_pad_nd": pad, "triu": np.triu, "tril": np.tril,
}  # fmt: skip

# Operands are first converted to the dtype of the result.
ARITHMETIC: dict[str, Callable[..., Array]] = {
    "add.Tensor": np.add, "add.Scalar": np.add, "sub.Tensor": np.subtract, "sub.Scalar": np.subtract,
    "rsub.Scalar": lambda a, b: b - a, "mul.Tensor": np.multiply, "mul.Scalar": np.multiply,
    "div.Tensor": np.divide, "div.Scalar": np.divide, "reciprocal": lambda x: 1 / x, "square": lambda x: x * x,
    "sqrt": root, "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "trunc": np.trunc, "maximum": np.maximum, "minimum": np.minimum, "max.other": np.maximum,
    "min.other": np.minimum, "clamp_min": np.maximum, "clamp_min.Tensor": np.maximum, "clamp_max": np.minimum,
    "clamp_max.Tensor": np.minimum, "relu": lambda x: np.maximum(x, 0), "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x, lo=-1, hi=1: np.clip(x, lo, hi), "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, x * f32(slope)),
    "div.Tensor_mode": lambda a, b, rounding_mode: (
        np.floor_divide(a, b) if rounding_mode == "floor" else np.trunc(a / b).astype(a.dtype)
    ),
    "__and__.Tensor": np.bitwise_and, "__or__.Tensor": np.bitwise_or, "bitwise_and.Tensor": np.bitwise_and,
    "bitwise_or.Tensor": np.bitwise_or, "bitwise_not": np.invert, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_not": np.logical_not,
}  # fmt: skip

# Operands are first converted to float32 if there is a float among them, else to int64.
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    f"{name}.{form}": what for form in ("Scalar", "Tensor") for name, what in (
        ("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater),
        ("ge", np.greater_equal),
    )
}  # fmt: skip

# Of one tensor, in float64.
CURVES: dict[str, Callable[..., Array]] = {
    "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "rsqrt": lambda x: 1 / root(x), "tanh": tanh,
    "sin": lambda x: sin_cos(x)[0], "cos": lambda x: sin_cos(x)[1], "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x), "erf": erf, "erfc": erfc, "gelu": gelu,
    "softplus": lambda x, beta=1.0, top=20.0: np.where(x * beta > top, x, log1p_exp(x * beta) / beta),
    "elu": lambda x, a=1.0, scale=1.0, steep=1.0: np.where(x > 0, x * scale, expm1(x * steep) * (a * scale)),
    "mish": lambda x: x * tanh(log1p_exp(x)), "log_sigmoid": lambda x: -log1p_exp(-x),
    "glu": lambda x, dim=-1: np.split(x, 2, dim)[0] * sigmoid(np.split(x, 2, dim)[1]),
}  # fmt: skip


def axes_of(x: Array, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dimensions as a tuple; none are all of them."""
    return (dims,) if isinstance(dims, int) else tuple(dims or range(x.ndim))


def summed(x: Array, dims: Any = None, keepdims: bool = False, **_: Any) -> Array:
    axes = axes_of(x, dims)
    return total(x, axes, keepdims) if x.dtype.kind == "f" else x.sum(axes, keepdims=keepdims, dtype=i64)


def vector_norm(x: Array, p: float = 2, dims: Any = None, keepdims: bool = False) -> Array:
    if p != 2:
        raise UnsupportedError(f"a norm with p = {p}")
    return root(total(wide(x) * wide(x), axes_of(x, dims), keepdims))


def each(x: Any, dims: int) -> list[int]:
    """One number for each dimension; one alone stands for all."""
    numbers = [x] if isinstance(x, int) else list(x)
    return numbers * dims if len(numbers) == 1 else numbers


def pooled(
    find: Callable[..., Array], x: Array, lists: Sequence[Sequence[int]], ceil: bool, inside: float, beyond: float
) -> Array:
    """What `find` says of the windows along the last dimensions, with `inside` in the padding.

    `lists` are widths, steps, padding and distances. With `ceil` windows may reach past the padding: there is `beyond`.
    """
    first = x.ndim - len(lists[0])
    x = pad(x, [p for p in reversed(lists[2]) for _ in range(2)], inside)
    for dim, (width, step, around, apart) in enumerate(zip(*lists, strict=True), first):
        length, seen = x.shape[dim], apart * (width - 1) + 1
        places = (length - seen + (step - 1 if ceil else 0)) // step + 1
        places -= ceil and (places - 1) * step >= length - around  # windows begin inside, or in the padding before
        missing = max((places - 1) * step + seen - length, 0)
        x = pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, missing], beyond)
        x = find(windows(cut(x, dim, 0, (places - 1) * step + seen), dim, width, step, apart), -1)
    return x


def max_pool(dims: int) -> Callable[..., Array]:
    def pool(x: Array, width: Any, step: Any = (), around: Any = 0, apart: Any = 1, ceil: bool = False) -> Array:
        lists = [each(given, dims) for given in (width, step or width, around, apart)]
        return pooled(np.max, x, lists, ceil, -np.inf, -np.inf)

    return pool


def average_pool(dims: int) -> Callable[..., Array]:
    def pool(
        x: Array, width: Any, step: Any = (), around: Any = 0, ceil: bool = False, padding_counts: bool = True,
        divisor: int | None = None,
    ) -> Array:  # fmt: skip
        lists = [each(given, dims) for given in (width, step or width, around, 1)]
        whole, unit = on_integers(x, tuple(range(-dims, 0)))
        count = pooled(np.sum, np.ones(x.shape[-dims:]), lists, ceil, int(padding_counts), 0)
        added = pooled(np.sum, whole.astype(i64), lists, ceil, 0, 0).astype(f64)
        return added * unit / (count if divisor is None else f64(divisor))

    return pool


def adaptive_average_pool(dims: int) -> Callable[..., Array]:
    def pool(x: Array, sizes: Any) -> Array:
        (whole, unit), count = on_integers(x, tuple(range(-dims, 0))), np.ones(())
        for axis, n in zip(range(-dims, 0), each(sizes, dims), strict=True):
            length = whole.shape[axis]
            n = length if n is None else n
            bounds = [(i * length // n, -(-(i + 1) * length // n)) for i in range(n)]
            whole = np.stack([total(cut(whole, axis, *both), (axis,)) for both in bounds], axis)
            count = count[..., None] * np.array([last - first for first, last in bounds], f64)
        return whole * unit / count

    return pool


def largest_first(x: Array, k: int, dim: int = -1, _: bool = True, __: bool = True) -> tuple[Array, Array]:
    order = cut(np.argsort(-x, dim, kind="stable"), dim, 0, k)  # of equals the first
    return np.take_along_axis(x, order, dim), order


def replaced(x: Array, index: Any, value: Any) -> Array:
    """A copy with other values at some places."""
    x = x.copy()
    x[index] = value
    return x


def scattered(x: Array, dim: int, index: Array, value: float) -> Array:
    x = x.copy()
    np.put_along_axis(x, index, value, dim)
    return x


def hadamard(x: Array, block: int, skip: Sequence[int] = ()) -> Array:
    """The Walsh–Hadamard transform of the last dimension in blocks, with signs before it; some channels count as zero.

    Example:
        >>> hadamard(np.array([1, 2, 3, 4], f32), 4).tolist()
        [2.0, 6.0, 4.0, -8.0]
    """
    within = [c % block for c in range(x.shape[-1])]
    signs = [0 if c in skip else 1 - 2 * ((i & i >> 1).bit_count() % 2) for c, i in enumerate(within)]
    x, half = np.where(np.array(signs) == 0, 0, x * np.array(signs, x.dtype)).astype(x.dtype), 1
    while half < block:  # neighbours first: additions of floats have an order
        pairs = x.reshape(*x.shape[:-1], -1, 2, half)
        x = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(x.shape)
        half *= 2
    return x


# The rest. What is said in float64 above is rounded here, to the dtype of the result.
OTHERS: dict[str, Callable[..., Any]] = {
    "softmax.int": lambda x, dim, _=None: np.swapaxes(softmax(np.swapaxes(x, dim, -1)), dim, -1),
    "layer_norm": layer_norm, "group_norm": group_norm, "linalg_vector_norm": vector_norm,
    "sum": summed, "sum.dim_IntList": summed, "mean": lambda x: mean(x, axes_of(x, None)),
    "mean.dim": lambda x, dims=None, keepdims=False, **_: mean(x, axes_of(x, dims), keepdims),
    "cumsum": lambda x, dim, **_: running_total(x, dim) if x.dtype.kind == "f" else x.astype(i64).cumsum(dim),
    "pow.Tensor_Scalar": lambda x, y: power(wide(x), y) if x.dtype.kind == "f" else x**y,
    "max_pool1d": max_pool(1), "max_pool2d": max_pool(2), "avg_pool1d": average_pool(1), "avg_pool2d": average_pool(2),
    "adaptive_avg_pool1d": adaptive_average_pool(1), "adaptive_avg_pool2d": adaptive_average_pool(2),
    "to.dtype": lambda x, _: x,
    "getitem": lambda values, i: values[i],
    "embedding": lambda table, rows, *_: table[rows],
    "cat": lambda parts, dim=0: np.concatenate([x for x in parts if x.shape != (0,)], dim),
    "stack": lambda parts, dim=0: np.stack(parts, dim),
    "clamp": lambda x, lo=None, hi=None: np.clip(x, lo, hi),
    "where.self": np.where, "where.Scalar": np.where, "where.ScalarSelf": np.where, "where.ScalarOther": np.where,
    "masked_fill.Scalar": lambda x, mask, value: np.where(mask, value, x),
    "masked_fill.Tensor": lambda x, mask, value: np.where(mask, value, x),
    "amax": lambda x, dims=None, keepdims=False: x.max(axes_of(x, dims), keepdims=keepdims),
    "amin": lambda x, dims=None, keepdims=False: x.min(axes_of(x, dims), keepdims=keepdims),
    "max.dim": lambda x, dim, keep=False: (x.max(dim, keepdims=keep), x.argmax(dim, keepdims=keep)),
    "min.dim": lambda x, dim, keep=False: (x.min(dim, keepdims=keep), x.argmin(dim, keepdims=keep)),
    "topk": largest_first,
    "argsort": lambda x, dim=-1: np.argsort(x, dim, kind="stable"),
    "diff": lambda x, n=1, dim=-1, *before: np.diff(x, n, dim, *before),
    "argmax": lambda x, dim=None, keepdims=False: np.argmax(x, dim, keepdims=keepdims),
    "slice_scatter": lambda x, new, dim=0, *part: replaced(x, at(x, dim, slice(*(*part, None, None)[:3])), new),
    "select_scatter": lambda x, new, dim, i: replaced(x, at(x, dim, i), new),
    "index_put": lambda x, given, value: replaced(x, indices(given), value),
    "scatter.value": scattered,
    "arange": lambda end, **_: np.arange(end),
    "arange.start": lambda start, end, **_: np.arange(start, end),
    "arange.start_step": lambda start, end, step, **_: np.arange(start, end, step),
    "zeros": lambda sizes, **_: np.zeros(sizes), "ones": lambda sizes, **_: np.ones(sizes),
    "eye": lambda n, **_: np.eye(n),
    "full": lambda sizes, value, **_: np.full(sizes, value), "scalar_tensor": lambda x, **_: np.asarray(x),
    "hadamard": hadamard, "channels": lambda x, chosen: x[..., list(chosen)],
    "causal_mask": lambda rows, columns: np.where(np.tri(rows, columns, dtype=bool), f32(0), np.finfo(f32).min),
}  # fmt: skip
KNOWN = MOVES | ARITHMETIC | COMPARISONS | CURVES | OTHERS


def evaluate(op: str, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: Any) -> Any:
    """The value of a function, in the dtype that its node has.

    Example:
        >>> evaluate("aten.add.Tensor", [np.array([1, 2]), 0.5], {}, np.float32).tolist()
        [1.5, 2.5]
    """
    name = short(op)
    if name in ARITHMETIC:
        return ARITHMETIC[name](*(np.asarray(x).astype(dtype) for x in args), **kwargs)
    if name in COMPARISONS:
        arrays = [np.asarray(x) for x in args]
        kind = f32 if any(x.dtype.kind == "f" for x in arrays) else i64
        return COMPARISONS[name](*(x.astype(kind) for x in arrays))
    if name in CURVES:
        return CURVES[name](wide(args[0].astype(f32)), *args[1:], **kwargs).astype(f32)
    found = KNOWN[name](*args, **kwargs)
    return found if isinstance(found, tuple) else np.asarray(found).astype(dtype)


# --------------------------------------------------------------------------------------- products on the integer grid

LARGEST_WEIGHT = {8: 127, 16: 32639}  # 32639 = 127·256 + 127: of 16 bits, both bytes fit into −128 … 127


def code(u: Array, scale: Array, lo: int, hi: int) -> Array:
    """The code that a value gets: `floor(u/s + 1/2)`, in float64, from lo to hi.

    Example:
        >>> code(np.array([-0.30, 0.24, 0.25, 9.0], np.float32), np.float32(0.5), -2, 1).tolist()
        [-1.0, 0.0, 1.0, 1.0]
    """
    return np.clip(np.floor(wide(u) / wide(scale) + 0.5), lo, hi).astype(f32)


def on_grid(rows: Array, bits: int) -> tuple[Array, Array]:
    """Integers and a scale for each row of a table: `rows ≈ codes · scale`."""
    largest = np.abs(rows).max(-1)
    scale = largest / f32(LARGEST_WEIGHT[bits])
    scale = np.where(scale > 0, scale, f32(1))
    return code(rows, scale[:, None], -LARGEST_WEIGHT[bits], LARGEST_WEIGHT[bits]), scale


def rows_of(node: Node, weight: Array, x: Array) -> Array:
    """What a product sees, a row for each place: of a convolution the window of its kernel, channel by channel."""
    if node.kind == "Linear":
        return x
    x = pad(x, [p for pair in reversed(node.padding) for p in pair])
    for dim, (width, step, apart) in enumerate(zip(weight.shape[2:], node.stride, node.dilation, strict=True), 2):
        x = windows(x, dim, width, step, apart)
    x = np.moveaxis(x, 1, weight.ndim - 1)  # [B, C, out…, kernel…] → [B, out…, C, kernel…]
    return x.reshape(*x.shape[: weight.ndim - 1], -1)


def integer_sums(node: Node, weight: Array, x: Array) -> Array:
    """Sums of whole numbers times integer weights. They stay below 2^53: float64 has them exactly, in any order."""
    rows = wide(rows_of(node, weight, x))
    groups = node.groups  # each sees its own channels, which stand one after another
    matrices = wide(weight).reshape(groups, len(weight) // groups, -1)
    flat = np.moveaxis(rows.reshape(-1, groups, matrices.shape[-1]), 1, 0)
    sums = flat @ np.swapaxes(matrices, 1, 2)  # [groups, rows, out]
    return np.moveaxis(sums, 0, 1).reshape(*rows.shape[:-1], len(weight))


def weight_of(network: Network, node: Node) -> tuple[Array, Array]:
    """The integer weights of a product, and their scale for each output channel."""
    key = network.nodes[node.weight].key
    return network.tensors[f"{key}.codes"], network.tensors[f"{key}.scale"]


def with_bias(network: Network, node: Node, y: Array) -> Array:
    y = y.astype(f32)
    y = y if node.bias is None else y + network.tensors[network.nodes[node.bias].key]
    return y if node.kind == "Linear" else np.moveaxis(y, -1, 1)


def input_layer(network: Network, node: Node, x: Array) -> Array:
    """A product that sees the input, once: as whole numbers of units of 2^−16."""
    weight, scale = weight_of(network, node)
    sums = integer_sums(node, weight, np.floor(wide(x) * 2.0**16 + 0.5))
    return with_bias(network, node, sums * (wide(scale) * 2.0**-16))


def synapse(network: Network, node: Node, sums: Array) -> Array:
    """The values of a product with weights, from the sums over the codes that it reads: `sums · (s_in·s_w) + bias`."""
    (weight, scale), site = weight_of(network, node), network.source(node.x)
    s_in = network.step_size(site)
    factor = scale if s_in.ndim else s_in * scale  # scales per channel are part of the integer weights
    if network.nodes[node.weight].bits == 16 and halves_fit(weight, max(-site.lo, site.hi)):
        sums = sums.astype(f32)
    return with_bias(network, node, wide(sums) * wide(factor))


def halves_fit(weight: Array, largest_code: int) -> bool:
    """Whether sums with the upper and with the lower bytes of 16-bit weights stay below 2^24.

    They are summed apart; if a float32 holds both of them, it is also what they are put together in.
    """
    codes = wide(weight).reshape(len(weight), -1)
    low = np.remainder(codes + 128, 256) - 128
    return all(np.abs(half).sum(-1).max() * largest_code < 2**24 for half in ((codes - low) / 256, low))


def pair(network: Network, node: Node, sums: Array, values: Mapping[str, Any]) -> Array:
    """The values of a product of two values, from the sums over both their codes: `sums · (s_a·s_b·scaling)`."""

    def scale(read: Node) -> Array:
        if read.kind == "Site":
            return network.step_size(read)
        return values[f"{read.name}.scale"] if read.kind == "Grid" else network.tensors[f"{read.key}.scale"]

    factor = scale(network.source(node.a)) * scale(network.source(node.b)) * f32(node.scaling)
    return (sums * wide(factor)).astype(f32)


# ---------------------------------------------------------------------------------------------- going through a network


def sizes_of(network: Network, inputs: Mapping[str, Array]) -> dict[str, int]:
    """What the symbols stand for in a batch that fits the network."""
    wanted = {node.name: node for node in network.nodes.values() if node.kind == "Input"}
    if wanted.keys() != inputs.keys():
        raise ValueError(f"inputs are {', '.join(inputs)}, but the network needs {', '.join(wanted)}")
    sizes = {symbol: inputs[name].shape[dim] for symbol, (name, dim) in network.symbols.items()}
    for name, node in wanted.items():
        shape = tuple(size(n, sizes) for n in node.shape)
        if inputs[name].shape != shape:
            raise ValueError(f"{name} has the shape {inputs[name].shape}, but the network needs {shape}")
    return sizes


def function(node: Node, values: Mapping[str, Any], sizes: Sizes) -> Any:
    args, kwargs = bound(node.args, values, sizes), bound({"dict": node.kwargs}, values, sizes)
    return evaluate(node.op, args, kwargs, DTYPES[node.dtype])


def constants(network: Network, inputs: Mapping[str, Array], sizes: Sizes) -> dict[str, Any]:
    """The values that do not change over time: what depends on weights and inputs, up to the first sites."""
    values: dict[str, Any] = {}
    for name, node in network.nodes.items():
        if name in network.moving:
            continue
        if node.kind == "Input":
            values[name] = inputs[name].astype(DTYPES[node.dtype])
        elif node.kind == "Weight":
            values[name] = network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        elif node.kind == "Function":
            values[name] = function(node, values, sizes)
        elif node.kind == "Rows":  # looked up in a table: each row on a grid of its own
            x = values[node.x]
            codes, scale = on_grid(x.reshape(-1, x.shape[-1]), node.bits)
            values[name] = (codes * scale[:, None]).reshape(x.shape)
        elif node.kind == "Grid":  # a constant whose size depends on the batch: one grid for all of it
            x = values[node.weight]
            codes, scale = on_grid(x.reshape(1, -1), node.bits)
            values[name], values[f"{name}.scale"] = codes.reshape(x.shape), scale.reshape(())
        elif node.kind == "Matmul":
            values[name] = (float_product(values[node.a], values[node.b]) * node.scaling).astype(f32)
        elif network.source(node.weight) is not None:
            values[name] = input_layer(network, node, values[node.x])
        else:
            y = float_product(values[node.x], values[node.weight].T)
            values[name] = (y if node.bias is None else y + wide(values[node.bias])).astype(f32)
    return values


def walk(network: Network, values: dict[str, Any], sizes: Sizes, site: Callable, product: Callable) -> Any:
    """Evaluate what changes over time, in order; returns the output. What sites and products do, the caller says."""
    for name, node in network.nodes.items():
        if name not in network.moving:
            continue
        if node.kind == "Site":
            if not np.isfinite(values[node.u]).all():
                raise ValueError(f"what reaches the site {name!r} is not finite")
            values[name] = site(node, values[node.u])
        elif node.kind == "Function":
            values[name] = function(node, values, sizes)
        elif node.kind == "Values":
            values[name] = values[node.codes] * network.step_size(network.nodes[node.codes])
        else:
            values[name] = product(node, values)
    return bound(network.output, values, sizes)


# ------------------------------------------------------------------------------------------------ the quantized network


def quantized(network: Network, inputs: Mapping[str, Array]) -> tuple[Any, dict[str, Array]]:
    """There is no time: every site holds its final codes at once. Returns the output and the codes of every site."""
    sizes = sizes_of(network, inputs)
    still = constants(network, inputs, sizes)
    codes: dict[str, Array] = {}

    def site(node: Node, u: Array) -> Array:
        codes[node.name] = code(u, network.step_size(node), node.lo, node.hi)
        return codes[node.name]

    def product(node: Node, values: Mapping[str, Any]) -> Array:
        if node.kind == "Matmul":
            return pair(network, node, wide(values[node.a]) @ wide(values[node.b]), still)
        return synapse(network, node, integer_sums(node, weight_of(network, node)[0], values[node.x]))

    return walk(network, dict(still), sizes, site, product), codes


# ------------------------------------------------------------------------------------------------- the spiking network


def fire(membrane: Array, tracer: Array, threshold: Array, lo: int, hi: int) -> Array:
    """The spike of a neuron: +1 if V ≥ s and S < hi, −1 if V < 0 and S > lo, else 0.

    Example:
        >>> fire(np.array([1.0, 0.99, -0.01, 5.0]), np.array([0.0, 0.0, 0.0, 3.0]), np.float64(1), -4, 3).tolist()
        [1, 0, -1, 0]
    """
    return np.where((membrane >= threshold) & (tracer < hi), 1, np.where((membrane < 0) & (tracer > lo), -1, 0))


class Spiking:
    """A batch on its way through the network, one time-step after another."""

    def __init__(self, network: Network, inputs: Mapping[str, Array]) -> None:
        self.network, self.sizes = network, sizes_of(network, inputs)
        self.still = constants(network, inputs, self.sizes)
        self.tracers: dict[str, Array] = {}  # S: what the neurons of a site have fired so far; these are its codes
        self.spikes: dict[str, Array] = {}  # what they fire in this step
        self.sums: dict[str, Array] = {}  # the running sums of a product
        self.seen: dict[tuple[str, str], Array] = {}  # the codes that an operand of a product had a step ago

    def step(self) -> Any:
        """One time-step; returns the output after it. Functions see running sums, and so does the output."""
        return walk(self.network, dict(self.still), self.sizes, self.site, self.product)

    def site(self, node: Node, u: Array) -> Array:
        """ST-BIF+ from the running sum u of what has arrived: `V = s/2 + u − s·S`, in float64."""
        tracer, s = self.tracers.get(node.name, np.zeros_like(u)), wide(self.network.step_size(node))
        membrane = (s / 2 + wide(u)) - s * wide(tracer)
        self.spikes[node.name] = fire(membrane, tracer, s, node.lo, node.hi)
        self.tracers[node.name] = tracer + self.spikes[node.name].astype(f32)
        return self.tracers[node.name]

    def product(self, node: Node, values: Mapping[str, Any]) -> Array:
        """What this step's spikes add to the running sums, and the values that follow from these."""
        if node.kind == "Matmul":  # SESA: A·B grows by A·b + a·B − a·b, where A and B have this step's a and b in them
            codes_a, codes_b = wide(values[node.a]), wide(values[node.b])
            a, b = self.arriving(node, "a", codes_a), self.arriving(node, "b", codes_b)
            added = codes_a @ b + a @ codes_b - a @ b
        else:
            added = integer_sums(node, weight_of(self.network, node)[0], self.arriving(node, "x", wide(values[node.x])))
        sums = self.sums[node.name] = self.sums.get(node.name, 0) + added
        return (
            pair(self.network, node, sums, self.still) if node.kind == "Matmul" else synapse(self.network, node, sums)
        )

    def arriving(self, node: Node, operand: str, codes: Array) -> Array:
        """The spikes that reach a product in this step: by how much the codes that it reads have changed."""
        before = self.seen.get((node.name, operand), np.zeros_like(codes))
        self.seen[node.name, operand] = codes
        return codes - before


@dataclass
class Run:
    """What a run gives: the output after each step, spikes `[T]` and final codes of each site, and T_eq.

    T_eq is the step of the last spike; None if the run ended before a silent step.
    """

    outputs: list[Any]
    spikes: dict[str, Array]
    codes: dict[str, Array]
    t_eq: int | None


def spiking(network: Network, inputs: Mapping[str, Array], steps: int | None = None) -> Run:
    """A number of steps, or as many as it takes until nothing fires: then no running sum changes any more."""
    run = Spiking(network, inputs)
    outputs: list[Any] = []
    counts: list[list[int]] = []
    while len(outputs) != steps:
        outputs.append(run.step())
        counts.append([int(np.abs(spikes).sum()) for spikes in run.spikes.values()])
        if steps is None and not any(counts[-1]):
            break
    spikes = dict(zip(run.spikes, np.array(counts).T, strict=True))
    last = max(np.flatnonzero(np.sum(counts, axis=1)) + 1, default=0)
    return Run(outputs, spikes, run.tracers, int(last) if last < len(outputs) else None)


def samples(network: Network, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The samples of a batch, each as a batch of one: how many spikes it takes is a matter of each sample.

    Where the codes of a sample depend on the others, it is the whole batch.
    """
    symbol = ["symbol", network.batch]
    dims = {name: network.nodes[name].shape.index(symbol) for name in inputs if symbol in network.nodes[name].shape}
    count = sizes_of(network, inputs)[network.batch] if network.batch is not None else 1
    parts = [{n: cut(x, dims[n], i, i + 1) if n in dims else x for n, x in inputs.items()} for i in range(count)]
    alone = [quantized(network, part)[1] for part in parts]
    for site, codes in quantized(network, inputs)[1].items():
        shared = np.array_equal(codes, alone[0][site])  # neurons that belong to no sample
        apart = np.sort(np.concatenate([found[site] for found in alone], axis=None))
        if not shared and not np.array_equal(np.sort(codes, axis=None), apart):
            return [dict(inputs)]
    return parts


# ---------------------------------------------------------------------------------------------------- the command line


def arrays_of(output: Any, name: str = "output") -> Iterator[tuple[str, Array]]:
    """The arrays in what a network returns, by name."""
    if isinstance(output, (dict, list)):
        for key, value in output.items() if isinstance(output, dict) else enumerate(output):
            yield from arrays_of(value, key if isinstance(key, str) else f"{name}[{key}]")
    elif isinstance(output, np.ndarray):
        yield name, output


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run a saved spiking network of spikezip with NumPy alone.")
    parser.add_argument("folder", help="what `spikezip convert` wrote")
    parser.add_argument("inputs", help="the inputs by name, as numpy.savez stores them")
    parser.add_argument("--steps", type=int, help="how many time-steps; without it, until nothing fires")
    parser.add_argument("--hash", action="store_true", help="also a SHA-256 of the codes of each site")
    given = parser.parse_args(arguments)
    digests: dict[str, Any] = {}
    try:
        network = read_network(given.folder)
        with np.load(given.inputs) as file, np.errstate(all="ignore"):  # −inf − (−inf) is meant to be NaN
            parts = samples(network, dict(file))
            for number, sample in enumerate(parts):
                run, (_, expected) = spiking(network, sample, given.steps), quantized(network, sample)
                equal = all(np.array_equal(run.codes[name], expected[name]) for name in expected)
                what = f"sample {number}" if len(parts) > 1 else "the batch"
                print(f"{what}: T_eq {run.t_eq}, {sum(map(sum, run.spikes.values()))} spikes, codes", end=" ")
                print("of the quantized network" if equal else "other than those of the quantized network")
                for name, x in arrays_of(run.outputs[-1]):
                    print(f"{name} {x.dtype} {list(x.shape)}\n{x}")
                for name, codes in run.codes.items():  # int16, little endian, in C order, one sample after another
                    digests.setdefault(name, hashlib.sha256()).update(codes.astype("<i2").tobytes())
    except (UnsupportedError, ValueError, OSError) as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    for name, found in digests.items() if given.hash else ():
        print(found.hexdigest(), name)


if __name__ == "__main__":
    main()
