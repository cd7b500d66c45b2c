"""Operations of `torch.export` → nodes of a program.

Most operations become one function. Here stand those that become products, or several nodes, or nothing.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from spikezip.errors import CoverageError
from spikezip.program.functions import KINDS, kind_of
from spikezip.program.nodes import Convolution, Function, Input, Linear, Matmul, Node, Ref, Weight
from spikezip.program.sizes import from_torch, minus, plus, times

# These leave values as they are, or only say something about them.
_SAME = "contiguous clone detach detach_ alias lift_fresh lift_fresh_copy positive resolve_conj resolve_neg"
_NOTHING = {
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size",
}  # fmt: skip
# Where a tensor lies, and how, is nothing that a program says.
_LAYOUT = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"}
_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")
_VIEWS = {
    "view", "reshape", "flatten", "unflatten", "transpose", "permute", "unsqueeze", "squeeze", "expand", "t", "slice",
    "select", "narrow", "diagonal", "split", "split_with_sizes", "chunk", "unbind", "movedim", "swapaxes", "view_as",
    "expand_as", "unfold", "alias", "detach", "numpy_T",
}  # fmt: skip


# Other names of the same operations.
_ALIASES = {
    "clip": "clamp", "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "concat": "cat",
    "concatenate": "cat", "absolute": "abs", "negative": "neg", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "not_equal": "ne", "swapdims": "transpose", "swapaxes": "transpose", "arctan2": "atan2",
    "special_expit": "sigmoid", "special_erf": "erf", "special_log_softmax": "log_softmax", "fix": "trunc",
    "adaptive_avg_pool2d_": "adaptive_avg_pool2d", "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "outer": "ger", "linalg_matmul": "matmul", "special_softmax": "softmax",
}  # fmt: skip


def base_name(node: FxNode) -> str:
    """`aten.add_.Tensor` → `add_`; of what is no operator, its own name."""
    target = node.target
    return target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else str(target)


def is_in_place(node: FxNode) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_view(node: FxNode) -> bool:
    return base_name(node) in _VIEWS or node.target is operator.getitem


def functional_name(node: FxNode) -> tuple[str, str]:
    """The name of an operator and its overload; of one that writes in place, those of what it writes."""
    assert isinstance(node.target, torch._ops.OpOverload)
    name, overload = base_name(node), node.target._overloadname or "default"
    name = _ALIASES.get(name, name)
    if is_in_place(node):
        name = _ALIASES.get(name.removesuffix("_"), name.removesuffix("_"))
    return name, overload


def is_known(node: FxNode) -> bool:
    """Whether a program has a node, or several, for an exported operation."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if not isinstance(node.meta.get("val"), (Tensor, list, tuple)) or base_name(node) in _NOTHING:
        return True
    name, overload = functional_name(node)
    if name == "einsum":
        return _is_product_of_two(node)
    return name in _LOWERINGS or name == "item" or f"aten.{name}.{overload}" in KINDS


def _is_product_of_two(node: FxNode) -> bool:
    """Whether an einsum is one product of two tensors, or moves the dimensions of one."""
    terms, arrow, out = str(node.args[0]).replace(" ", "").partition("->")
    letters = terms.split(",")
    plain = bool(arrow) and all(len(set(x)) == len(x) for x in (term.replace("...", "") for term in (*letters, out)))
    if not plain or len(letters) > 2:
        return False
    others = [out + "".join(letters[:i] + letters[i + 1 :]) for i in range(len(letters))]
    return all(set(term) <= set(other) for term, other in zip(letters, others, strict=True))


class Reader:
    """Reads the nodes of an exported graph one by one; `nodes` is the program so far.

    `numbers` are those that the model's code made into tensors, by key: they are part of the program, and no weights.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        prefix: str,
        keys: Mapping[str, str],
        parameters: frozenset[str],
        numbers: Mapping[str, Any],
    ) -> None:
        self.symbols: dict[str, Any] = dict(names)
        self.prefix, self.keys, self.parameters, self.numbers = prefix, keys, parameters, numbers
        self.scalars: dict[FxNode, Any] = {}  # whole numbers that a network keeps in tensors, such as a span
        self.nodes: list[Node] = []
        self.values: dict[FxNode, Any] = {}  # exported node → `Ref`, number, `Size`, or a list of these
        self.taken: set[str] = set()
        self.module = ""

    # --- names

    def short(self, name: str) -> str:
        return name.removeprefix(self.prefix) if self.prefix else name

    def unique(self, name: str) -> str:
        name = name or "network"
        found, count = name, 1
        while found in self.taken:
            count += 1
            found = f"{name}~{count}"
        self.taken.add(found)
        return found

    def _module_of(self, node: FxNode) -> str:
        """The path of the module whose forward pass made a node; `@1` marks the second call of one module."""
        stack = [(key, entry) for key, entry in (node.meta.get("nn_module_stack") or {}).items()]
        if not stack or not isinstance(stack[-1][1], tuple):
            return self.module
        key, (path, *_) = stack[-1]
        if path.startswith("_empty_nn_module_stack"):
            return self.module
        _, at, call = key.rpartition("@")
        path = self.short(path.split("@")[0])
        return f"{path}@{call}" if at and call.isdigit() else path

    # --- reading

    def read(self, node: FxNode) -> None:
        if node.op == "placeholder":
            self.values[node] = self._placeholder(node)
        elif node.op == "call_function":
            self.module = self._module_of(node)
            self.values[node] = self._call(node)
        elif node.op == "get_attr":
            raise self._kept_apart(node)

    def _kept_apart(self, subgraph: FxNode) -> CoverageError:
        reader = next(iter(subgraph.users), subgraph)
        name, where = base_name(reader), self._module_of(reader) or "the model"
        if name in _CONTROL_FLOW:
            return CoverageError(
                f"torch.{name} in {where}: control flow that depends on values is not supported. Compute both branches "
                "and choose with torch.where, or convert the part of the model without it"
            )
        return CoverageError(
            f"{name} in {where}: torch.export keeps its operations apart (a compiled attention, say). Use plain "
            "operations, such as attn_implementation='eager'"
        )

    def _placeholder(self, node: FxNode) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return None if value is None else self.number(value)
        key = self.keys.get(node.name)
        if key is None:
            return self.add(Input, value, name=str(node.target))
        if key in self.numbers:
            return self.function("aten.full.default", value, (), self.numbers[key], dtype=value.dtype)
        return self.add(Weight, value, name=self.short(key), key=key, trained=node.name in self.parameters)

    def number(self, value: Any) -> Any:
        return from_torch(value, self.symbols)

    def argument(self, x: Any) -> Any:
        """An argument of an exported node: references, numbers and sizes, nested as they were."""
        if isinstance(x, FxNode):
            value = x.meta.get("val")
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                read = self.values.get(x)
                known = str(value.node.expr) in self.symbols or not isinstance(read, Ref)
                return self.number(value) if known else read
            return self.values[x]
        if isinstance(x, (torch.SymInt, torch.SymFloat)):
            return self.number(x)
        if isinstance(x, (list, tuple)):
            return tuple(self.argument(value) for value in x)
        return x

    def add(self, kind: type[Node], like: Any, *, name: str = "", **given: Any) -> Ref:
        """Append a node whose value looks like `like`: a tensor of the exported graph, or `(shape, dtype)`."""
        if isinstance(like, Tensor):
            shape, dtype = self.sizes(like), like.dtype
        elif isinstance(like, tuple) and len(like) == 2 and isinstance(like[1], torch.dtype):
            shape, dtype = like
        else:  # several tensors at once: each is taken out by `getitem`
            shape, dtype = (), next((x.dtype for x in like if isinstance(x, Tensor)), torch.float32)
        node = kind(self.unique(name or self.module), shape, dtype, self.module, **given)
        self.nodes.append(node)
        return Ref(node.name)

    def function(self, op: str, like: Any, *args: Any, **kwargs: Any) -> Ref:
        kind_of(op, self.module)
        label = op.removeprefix("aten.").split(".")[0].strip("_")
        name = f"{self.module}.{label}" if self.module else label
        return self.add(Function, like, name=name, op=op, args=args, kwargs=kwargs)

    def like(self, op: str, x: Ref, *args: Any, shape: Any = None, **kwargs: Any) -> Ref:
        """A function whose value is like `x`, but for the shape if one is given."""
        node = self._node(x)
        return self.function(f"aten.{op}", (node.shape if shape is None else shape, node.dtype), x, *args, **kwargs)

    def reshaped(self, x: Ref, shape: Any) -> Ref:
        return self.like("reshape.default", x, shape, shape=shape)

    def shape(self, ref: Ref) -> tuple[Any, ...]:
        return self._node(ref).shape

    def sizes(self, value: Tensor) -> tuple[Any, ...]:
        return tuple(self.number(size) for size in value.shape)

    def _node(self, ref: Ref) -> Node:
        return next(node for node in reversed(self.nodes) if node.name == ref.name)

    def _call(self, node: FxNode) -> Any:
        value = node.meta.get("val")
        name = base_name(node)
        if name in _NOTHING:
            return None
        if node.target is operator.getitem:
            return self._getitem(node, value)
        if not isinstance(node.target, torch._ops.OpOverload):
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
                return None  # a size: it is read from where it is used
            raise CoverageError(f"{self.module or 'the model'} uses {name}, which is no operation on tensors")
        self._follow_scalar(node, name, value)
        if name == "item":  # a number that stays a tensor here
            return self.values[_first(node)]
        if not isinstance(value, (Tensor, list, tuple)):
            return None
        args = [self.argument(x) for x in node.args]
        kwargs = {k: self.argument(v) for k, v in node.kwargs.items() if k not in _LAYOUT}
        # Arguments by position have no names; those that say where a tensor lies are devices and formats.
        args = [x for x in args if not isinstance(x, (torch.device, torch.memory_format, torch.layout))]
        result = self._operation(*functional_name(node), value, args, kwargs)
        if is_in_place(node):
            self.values[_first(node)] = result
        return result

    def _follow_scalar(self, node: FxNode, name: str, value: Any) -> None:
        """Know whole numbers in tensors that are made from sizes, and the sizes of what is cut by them."""

        def number(x: Any) -> Any:
            return self.scalars.get(x) if isinstance(x, FxNode) and x in self.scalars else self.argument(x)

        if name == "item" and node.args[0] in self.scalars and isinstance(value, torch.SymInt):
            self.symbols[str(value.node.expr)] = number(node.args[0])
        elif name == "slice" and len(node.args) == 4:
            size = value.shape[node.args[1]]
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is not None and expression.is_Symbol and str(expression) not in self.symbols:
                self.symbols[str(expression)] = minus(*(self.number(_size(x)) for x in node.args[:1:-1]))
        elif isinstance(value, Tensor) and value.ndim == 0 and value.dtype is torch.int64:
            if name == "scalar_tensor":
                self.scalars[node] = self.argument(node.args[0])
            elif name in ("add", "sub", "rsub") and not node.kwargs:
                a, b = (number(x) for x in node.args[:2])
                if not isinstance(a, Ref) and not isinstance(b, Ref):
                    self.scalars[node] = plus(a, b) if name == "add" else minus(*((a, b) if name == "sub" else (b, a)))

    def _operation(self, name: str, overload: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        lowering = _LOWERINGS.get(name)
        if lowering is not None:
            return lowering(self, value, *args, **kwargs)
        if kwargs.get("alpha", 1) != 1:  # a product and a sum, which must not be fused
            alpha = kwargs.pop("alpha")
            other = args[1]
            args[1] = self.like("mul.Tensor", other, alpha) if isinstance(other, Ref) else other * alpha
        kwargs.pop("alpha", None)
        return self.function(f"aten.{name}.{overload}", value, *args, **kwargs)

    def _getitem(self, node: FxNode, value: Any) -> Any:
        whole, index = self.values[_first(node)], node.args[1]
        if isinstance(whole, (list, tuple)):
            assert isinstance(index, int)
            return whole[index]
        return self.function("getitem", value, whole, index)


def _first(node: FxNode) -> FxNode:
    """The first argument of an operation on a tensor: another node."""
    found = node.args[0]
    assert isinstance(found, FxNode)
    return found


# --- products


def _linear(reader: Reader, value: Tensor, x: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    given = {"x": x.name, "weight": weight.name, "bias": bias.name if bias else None}
    return reader.add(Linear, value, name=_label(reader, "linear"), **given)


def _matmul(reader: Reader, value: Tensor, a: Ref, b: Ref) -> Ref:
    left, right = reader.shape(a), reader.shape(b)
    if len(left) > 1 and len(right) > 1:
        return reader.add(Matmul, value, name=_label(reader, "matmul"), a=a.name, b=b.name)
    if len(left) == 1:  # vectors: rows or columns of one
        a = reader.like("unsqueeze.default", a, 0, shape=(1, *left))
    if len(right) == 1:
        b = reader.like("unsqueeze.default", b, 1, shape=(*right, 1))
    rows = (*reader.shape(b)[:-2], *reader.shape(a)[:-1], reader.shape(b)[-1])
    wide = reader.add(Matmul, (rows, value.dtype), name=_label(reader, "matmul"), a=a.name, b=b.name)
    return reader.function("aten.reshape.default", value, wide, reader.sizes(value))


def _size(x: Any) -> Any:
    return x.meta["val"] if isinstance(x, FxNode) else x


def _label(reader: Reader, label: str) -> str:
    return f"{reader.module}.{label}" if reader.module else label


def _addmm(reader: Reader, value: Tensor, bias: Ref, a: Ref, b: Ref, beta: Any = 1, alpha: Any = 1) -> Ref:
    if beta == 1 and alpha == 1 and isinstance(reader._node(b), Weight) and len(reader.shape(bias)) == 1:
        turned = reader.like("t.default", b, shape=reader.shape(b)[::-1])
        return _linear(reader, value, a, turned, bias)
    total = _matmul(reader, value, a, b)
    total = total if alpha == 1 else reader.like("mul.Tensor", total, alpha)
    if beta == 0:
        return total
    bias = bias if beta == 1 else reader.like("mul.Tensor", bias, beta)
    return reader.function("aten.add.Tensor", value, bias, total)


def _einsum(reader: Reader, value: Tensor, equation: str, operands: tuple[Ref, ...], path: Any = None) -> Ref:
    """A sum over products of two tensors as one matmul: dimensions in both, of the left, of the right, summed over.

    All other equations are spelled out by torch before (`is_known`).
    """
    left, _, out = _spelled_out(reader, equation.replace(" ", ""), operands).partition("->")
    letters = left.split(",")
    if len(operands) == 1:
        return reader.function("aten.permute.default", value, operands[0], tuple(left.index(x) for x in out))
    a, b = letters
    sizes = dict(zip(a, reader.shape(operands[0]), strict=True)) | dict(zip(b, reader.shape(operands[1]), strict=True))
    both = [x for x in a if x in b and x in out]
    summed = [x for x in a if x in b and x not in out]
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    inner, height, width = _product(sizes, summed), _product(sizes, rows), _product(sizes, columns)
    outer = tuple(sizes[x] for x in both)
    if not summed:  # nothing is summed: a product element by element
        spread = [_spread(reader, ref, name, out, sizes) for ref, name in zip(operands, letters, strict=True)]
        return reader.function("aten.mul.Tensor", value, *spread)
    first = _arranged(reader, operands[0], a, [*both, *rows, *summed], (*outer, height, inner), sizes)
    second = _arranged(reader, operands[1], b, [*both, *summed, *columns], (*outer, inner, width), sizes)
    total = reader.add(
        Matmul, ((*outer, height, width), value.dtype), name=_label(reader, "einsum"), a=first.name, b=second.name
    )
    found = [*both, *rows, *columns]
    shape = tuple(sizes[x] for x in found)
    if shape != (*outer, height, width):
        total = reader.reshaped(total, shape)
    order = tuple(found.index(x) for x in out)
    return total if list(order) == sorted(order) else reader.function("aten.permute.default", value, total, order)


def _bilinear(reader: Reader, value: Tensor, a: Ref, b: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    """`y_k = a · W_k · b`: a linear product with all `W_k` at once, and a product of its result with `b`."""
    outer, dtype, name = reader.shape(a)[:-1], value.dtype, _label(reader, "bilinear")
    out, left, right = reader.shape(weight)
    rows = times(out, right)
    matrix = reader.reshaped(reader.like("transpose.int", weight, 1, 2, shape=(out, right, left)), (rows, left))
    wide = reader.add(Linear, ((*outer, rows), dtype), name=name, x=a.name, weight=matrix.name)
    wide = reader.reshaped(wide, (*outer, out, right))
    column = reader.like("unsqueeze.default", b, len(outer) + 1, shape=(*outer, right, 1))
    y = reader.add(Matmul, ((*outer, out, 1), dtype), name=name, a=wide.name, b=column.name)
    y = reader.function("aten.squeeze.dim", value, y, len(outer) + 1)
    return y if bias is None else reader.function("aten.add.Tensor", value, y, bias)


def _spelled_out(reader: Reader, equation: str, operands: tuple[Ref, ...]) -> str:
    """An equation with letters in the place of `...`."""
    if "..." not in equation:
        return equation
    free = [x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in equation]
    left, arrow, out = equation.partition("->")
    terms, longest = [], ""
    for term, ref in zip(left.split(","), operands, strict=True):
        count = len(reader.shape(ref)) - len(term.replace("...", ""))
        hidden = "".join(free[:count][::-1])  # dimensions are matched from the right
        longest = max(longest, hidden, key=len)
        terms.append(term.replace("...", hidden))
    return ",".join(terms) + arrow + out.replace("...", longest)


def _arranged(reader: Reader, x: Ref, letters: str, order: list[str], shape: Any, sizes: Any) -> Ref:
    places = tuple(letters.index(letter) for letter in order)
    if list(places) != sorted(places):
        x = reader.like("permute.default", x, places, shape=tuple(sizes[letter] for letter in order))
    return x if reader.shape(x) == shape else reader.reshaped(x, shape)


def _spread(reader: Reader, x: Ref, letters: str, out: str, sizes: Any) -> Ref:
    order = [letter for letter in out if letter in letters]
    shape = tuple(sizes[letter] if letter in letters else 1 for letter in out)
    return _arranged(reader, x, letters, order, shape, sizes)


def _product(sizes: Mapping[str, Any], letters: list[str]) -> Any:
    return times(*(sizes[x] for x in letters))


def _attention(
    reader: Reader,
    value: Tensor,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Ref:
    """`softmax(q·kᵀ·scale + mask)·v`, as torch documents it; a masked place gets the lowest number added."""
    dtype, q_shape, k_shape, v_shape = value.dtype, reader.shape(q), reader.shape(k), reader.shape(v)
    if enable_gqa and q_shape[-3] != k_shape[-3]:
        copies, heads = q_shape[-3] // k_shape[-3], len(k_shape) - 3
        k_shape, v_shape = ((*shape[:-3], q_shape[-3], *shape[-2:]) for shape in (k_shape, v_shape))
        k = reader.like("repeat_interleave.self_int", k, copies, heads, shape=k_shape)
        v = reader.like("repeat_interleave.self_int", v, copies, heads, shape=v_shape)
    turned = reader.like(
        "transpose.int", k, len(k_shape) - 2, len(k_shape) - 1, shape=(*k_shape[:-2], k_shape[-1], k_shape[-2])
    )
    scores = ((*q_shape[:-1], k_shape[-2]), dtype)
    scaling = q_shape[-1] ** -0.5 if scale is None else scale
    seen = reader.add(Matmul, scores, name=_label(reader, "scores"), a=q.name, b=turned.name, scaling=float(scaling))
    if is_causal:
        hidden = reader.function("causal_mask", (scores[0][-2:], dtype), *scores[0][-2:])
        seen = reader.function("aten.add.Tensor", scores, seen, hidden)
    if mask is not None:
        node = reader._node(mask)
        if node.dtype == torch.bool:
            zero = reader.function("aten.full.default", ((), dtype), (), 0.0, dtype=dtype)
            lowest = torch.finfo(dtype).min
            mask = reader.function("aten.where.ScalarOther", (node.shape, dtype), mask, zero, lowest)
        seen = reader.function("aten.add.Tensor", scores, seen, mask)
    p = reader.function("aten.softmax.int", scores, seen, -1)
    if dropout:
        p = reader.function("aten.dropout.default", scores, p, dropout, False)
    return reader.add(Matmul, value, name=_label(reader, "mix"), a=p.name, b=v.name)


def _convolution(dims: int, transposed: bool = False) -> Callable[..., Ref]:
    def read(
        reader: Reader,
        value: Tensor,
        x: Ref,
        weight: Ref,
        bias: Ref | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *rest: Any,
    ) -> Ref:
        output_padding: Any = 0
        if transposed:  # torch has these in another order here
            output_padding, groups, dilation = rest + (0, 1, 1)[len(rest) :]
        else:
            dilation, groups = rest + (1, 1)[len(rest) :]
        kernel = reader.shape(weight)[2:]
        stride, dilation, output_padding = (_each(t, dims) for t in (stride, dilation, output_padding))
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            pads = tuple((t // 2, t - t // 2) for t in total)
        else:
            pads = tuple((p, p) for p in _each(0 if padding == "valid" else padding, dims))
        if transposed:
            reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            pads = tuple((r - lo, r - hi + o) for r, (lo, hi), o in zip(reach, pads, output_padding, strict=True))
            if any(p < 0 for pair in pads for p in pair):
                raise CoverageError(f"{reader.module}: a transposed convolution with more padding than its kernel")
            x, weight = _stuffed(reader, x, stride), _flipped(reader, weight, groups)
            stride = (1,) * dims
        return reader.add(
            Convolution, value, name=_label(reader, "convolution"), x=x.name, weight=weight.name,
            bias=bias.name if bias else None, stride=stride, padding=pads, dilation=dilation, groups=groups,
        )  # fmt: skip

    return read


def _stuffed(reader: Reader, x: Ref, stride: tuple[int, ...]) -> Ref:
    """Zeros between the elements: with them, a transposed convolution is a plain one."""
    for dim, step in enumerate(stride, 2):
        if step == 1:
            continue
        shape = reader.shape(x)
        before, size, behind = shape[:dim], shape[dim], shape[dim + 1 :]
        x = reader.like("unsqueeze.default", x, dim + 1, shape=(*before, size, 1, *behind))
        pads = (0, 0) * len(behind) + (0, step - 1)
        x = reader.like("constant_pad_nd.default", x, pads, 0, shape=(*before, size, step, *behind))
        long = times(size, step)
        x = reader.reshaped(x, (*before, long, *behind))
        end = minus(long, step - 1)
        x = reader.like("slice.Tensor", x, dim, 0, end, shape=(*before, end, *behind))
    return x


def _flipped(reader: Reader, weight: Ref, groups: int) -> Ref:
    """The kernel `[in, out/groups, …]` of a transposed convolution as that of a plain one, `[out, in/groups, …]`."""
    shape = reader.shape(weight)
    size, each, *kernel = (x for x in shape if isinstance(x, int))  # a weight has no symbols
    inputs = size // groups
    w = reader.like("flip.default", weight, tuple(range(2, len(shape))))
    w = reader.reshaped(w, (groups, inputs, each, *kernel))
    w = reader.like("transpose.int", w, 1, 2, shape=(groups, each, inputs, *kernel))
    return reader.reshaped(w, (groups * each, inputs, *kernel))


def _each(x: Any, dims: int) -> tuple[int, ...]:
    values = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    return values * dims if len(values) == 1 else values


def _general_convolution(
    reader: Reader, value: Tensor, x: Ref, weight: Ref, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> Ref:  # fmt: skip
    dims = len(reader.shape(weight)) - 2
    rest = (output_padding, groups, dilation) if transposed else (dilation, groups)
    return _convolution(dims, transposed)(reader, value, x, weight, bias, stride, padding, *rest)


# --- functions that become others


def _pieces(reader: Reader, value: Any, x: Ref, _: Any = None, dim: int = 0, **__: Any) -> list[Ref]:
    """`split`, `chunk` and the like as slices, one for each piece."""
    dim, found, start = dim % len(reader.shape(x)), list[Ref](), 0
    for piece in value:
        size = reader.number(piece.shape[dim])
        end = size if start == 0 else plus(start, size)
        found.append(reader.function("aten.slice.Tensor", piece, x, dim, start, end))
        start = end
    return found


def _unbind(reader: Reader, value: Any, x: Ref, dim: int = 0) -> list[Ref]:
    dim = dim % len(reader.shape(x))
    return [reader.function("aten.select.int", piece, x, dim, i) for i, piece in enumerate(value)]


def _filled(number: Any = None) -> Callable[..., Ref]:
    """A tensor full of a number, by default the last argument."""

    def fill(reader: Reader, value: Tensor, *args: Any, **kwargs: Any) -> Ref:
        fill_value = args[-1] if number is None else number
        return reader.function("aten.full.default", value, reader.sizes(value), fill_value, dtype=value.dtype)

    return fill


def _cast(reader: Reader, value: Tensor, x: Ref, *_: Any, **__: Any) -> Ref:
    same = reader._node(x).dtype == value.dtype
    return x if same else reader.function("aten.to.dtype", value, x, value.dtype)


def _batch_norm(reader: Reader, value: Any, x: Ref, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    """In `eval()` a product and a sum per channel: `x·a + c`, with a and c from the running statistics.

    Without these the statistics are those of `x`: weights that are standardised are written so.
    """
    like = value[0] if isinstance(value, (tuple, list)) else value
    eps = next(e for e in reversed(rest) if isinstance(e, float))
    channels = (reader.number(like.shape[1]),)
    if mean is None or var is None or rest[0] is True:
        dims = (0, *range(2, like.ndim))
        mean = reader.like("mean.dim", x, dims, shape=channels)
        var = reader.like("var.correction", x, dims, shape=channels, correction=0)
    factor = reader.like("reciprocal.default", reader.like("sqrt.default", reader.like("add.Scalar", var, eps)))
    factor = factor if weight is None else reader.like("mul.Tensor", factor, weight)
    shift = reader.like("mul.Tensor", mean, factor)
    zero = (channels, like.dtype)
    bias = reader.function("aten.full.default", zero, channels, 0.0, dtype=like.dtype) if bias is None else bias
    shift = reader.like("sub.Tensor", bias, shift)
    factor, shift = (reader.reshaped(x, (*channels, *[1] * (like.ndim - 2))) for x in (factor, shift))
    y = reader.function("aten.add.Tensor", like, reader.function("aten.mul.Tensor", like, x, factor), shift)
    return [y, None, None] if isinstance(value, (tuple, list)) else y


def _rms_norm(reader: Reader, value: Tensor, x: Ref, shape: Any, weight: Ref | None = None, eps: Any = None) -> Ref:
    """`x / sqrt(mean(x²) + eps) · weight`, as single operations."""
    node = reader._node(x)
    dims = tuple(range(len(node.shape) - len(shape), len(node.shape)))
    square = reader.like("pow.Tensor_Scalar", x, 2)
    mean = reader.like("mean.dim", square, dims, True, shape=(*node.shape[: dims[0]], *[1] * len(shape)))
    eps = torch.finfo(node.dtype).eps if eps is None else eps
    root = reader.like("rsqrt.default", reader.like("add.Scalar", mean, eps))
    y = reader.function("aten.mul.Tensor", value, x, root)
    return y if weight is None else reader.function("aten.mul.Tensor", value, y, weight)


def _copy(reader: Reader, value: Tensor, x: Ref, source: Ref, *_: Any) -> Ref:
    node, shape = reader._node(source), reader.sizes(value)
    if node.dtype != value.dtype:
        source = reader.function("aten.to.dtype", (node.shape, value.dtype), source, value.dtype)
    return source if node.shape == shape else reader.function("aten.expand.default", value, source, shape)


def _clamp(reader: Reader, value: Tensor, x: Ref, least: Any = None, most: Any = None, **named: Any) -> Ref:
    """Both bounds may be numbers or tensors."""
    for name, bound in (("min", named.get("min", least)), ("max", named.get("max", most))):
        if bound is not None:
            overload = "Tensor" if isinstance(bound, Ref) else "default"
            x = reader.function(f"aten.clamp_{name}.{overload}", value, x, bound)
    return x


def _view(reader: Reader, value: Tensor, x: Ref, to: Any) -> Ref:
    op = "aten.view.dtype" if isinstance(to, torch.dtype) else "aten.reshape.default"
    return reader.function(op, value, x, to)


def _shaped(reader: Reader, value: Tensor, op: str, x: Ref) -> Ref:
    return reader.function(f"aten.{op}.default", value, x, reader.sizes(value))


def _squeeze(reader: Reader, value: Tensor, x: Ref, dim: Any = None) -> Ref:
    """Only dimensions that always have one element go: a batch of one sample is still a batch."""
    shape = reader.shape(x)
    wanted = range(len(shape)) if dim is None else [d % len(shape) for d in (dim if isinstance(dim, tuple) else (dim,))]
    ones = tuple(d for d in wanted if shape[d] == 1)
    if not ones:
        return x
    if isinstance(dim, int):
        return reader.function("aten.squeeze.dim", value, x, dim)
    return reader.function("aten.squeeze.dims", value, x, ones)


def _softmax(reader: Reader, value: Tensor, x: Ref, dim: int, dtype: Any = None, **kwargs: Any) -> Ref:
    # `_softmax` has a flag where `softmax` has a dtype.
    wanted = dtype if isinstance(dtype, torch.dtype) else kwargs.get("dtype")
    node = reader._node(x)
    if wanted is not None and wanted != node.dtype:
        x = reader.function("aten.to.dtype", (node.shape, wanted), x, wanted)
    return reader.function("aten.softmax.int", value, x, dim)


def _repeat_interleave(reader: Reader, value: Tensor, x: Ref, repeats: Any, dim: Any = None, **_: Any) -> Ref:
    if isinstance(repeats, Ref) or dim is None:
        raise CoverageError(f"repeat_interleave in {reader.module}: give one number of repeats and a dimension")
    return reader.function("aten.repeat_interleave.self_int", value, x, repeats, dim)


def _embedding_bag(
    reader: Reader, values: Any, weight: Ref, ids: Ref, offsets: Ref, scaled: bool = False, mode: int = 0,
    sparse: bool = False, factors: Ref | None = None, last: bool = False, padding: int | None = None,
) -> list[Ref | None]:  # fmt: skip
    """Bags of one size: what is looked up for each, summed, averaged, or the largest of it."""
    begins, value = reader._node(offsets), values[0]
    regular = isinstance(begins, Function) and begins.op == "aten.arange.start_step" and begins.args[0] == 0
    if not regular or last or padding is not None:
        raise CoverageError(f"embedding_bag in {reader.module or 'the model'}: only for bags of one size, as [b, size]")
    assert isinstance(begins, Function)
    bags, width = (reader.number(size) for size in value.shape)
    size, dtype = begins.args[2], value.dtype
    table = reader.reshaped(ids, (bags, size))
    x = reader.function("aten.embedding.default", ((bags, size, width), dtype), weight, table)
    if factors is not None:
        x = reader.like("mul.Tensor", x, reader.reshaped(factors, (bags, size, 1)))
    op = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default")[mode]
    return [reader.function(op, value, x, (1,)), None, None, None]


def _pad(reader: Reader, value: Tensor, x: Ref, pads: Any, mode: str = "constant", number: Any = None) -> Ref:
    if all(p == 0 for p in pads):
        return x
    if mode != "constant":  # the border is made of elements that are there
        return reader.function("aten.pad.default", value, x, pads, mode)
    return reader.function("aten.constant_pad_nd.default", value, x, pads, number or 0)


_LOWERINGS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_SAME.split(), lambda reader, value, x, *_, **__: x),
    **dict.fromkeys(("to", "_to_copy", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool"), _cast),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _pieces),
    "unbind": _unbind,
    **dict.fromkeys(("new_zeros", "zeros_like", "new_empty", "empty_like", "empty"), _filled(0)),
    **dict.fromkeys(("new_ones", "ones_like"), _filled(1)),
    **dict.fromkeys(("new_full", "full_like"), _filled()),
    # How values lie in memory is no matter of the program.
    **dict.fromkeys(("view", "_unsafe_view", "view_copy"), _view),
    "pad": _pad,
    "constant_pad_nd": lambda reader, value, x, pads, number=0: _pad(reader, value, x, pads, "constant", number),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "einsum": _einsum,
    "bilinear": _bilinear,
    "embedding_bag": _embedding_bag,
    "scaled_dot_product_attention": _attention,
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "conv3d": _convolution(3),
    "conv_transpose1d": _convolution(1, transposed=True),
    "conv_transpose2d": _convolution(2, transposed=True),
    "conv_transpose3d": _convolution(3, transposed=True),
    "convolution": _general_convolution,
    "_convolution": _general_convolution,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "rms_norm": _rms_norm,
    "copy": _copy,
    "clamp": _clamp,
    "reshape_as": lambda reader, value, x, _: _shaped(reader, value, "reshape", x),
    "view_as": lambda reader, value, x, _: _shaped(reader, value, "reshape", x),
    "expand_as": lambda reader, value, x, _: _shaped(reader, value, "expand", x),
    "broadcast_tensors": lambda reader, value, xs: [
        _shaped(reader, each, "expand", x) for x, each in zip(xs, value, strict=True)
    ],
    "softmax": _softmax,
    "_softmax": _softmax,
    "repeat_interleave": _repeat_interleave,
    "squeeze": _squeeze,
    # Out of training its slope is the middle.
    "rrelu": lambda reader, value, x, least=1 / 8, most=1 / 3, *_: reader.function(
        "aten.leaky_relu.default", value, x, (least + most) / 2
    ),
    "ger": lambda reader, value, a, b: _einsum(reader, value, "i,j->ij", (a, b)),
    **dict.fromkeys(  # of real numbers, an adjoint is a transpose
        ("mT", "mH", "adjoint"),
        lambda reader, value, x: reader.function("aten.transpose.int", value, x, -2, -1),
    ),
}
