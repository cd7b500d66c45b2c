"""Rewrite a program before sites are placed: what scales or shifts a product's output becomes part of its weights."""

from dataclasses import replace
from typing import Any

from spikezip.program.analysis import Depends, dependence
from spikezip.program.masks import without_neutral_masks
from spikezip.program.nodes import (
    Convolution,
    Function,
    Linear,
    Matmul,
    Node,
    Product,
    Program,
    Ref,
    Shape,
    map_arguments,
)  # fmt: skip

_TIMES = ("aten.mul.Tensor", "aten.mul.Scalar")
_DIVIDED = ("aten.div.Tensor", "aten.div.Scalar")
_PLUS = ("aten.add.Tensor", "aten.add.Scalar")


def tidy(program: Program) -> Program:
    """Fold factors and shifts per channel into the product before them: LayerScale, batch norm, `q · scaling`.

    Masks that mask nothing are left out first.

    A product whose output is read once, by `· c`, `÷ c` or `+ c` with a constant c for each output channel, gets the
    weights `W·c` and the bias `b·c`, or the bias `b + c`. Constants are made from weights by functions that stay in the
    program, so that they can still be trained; they come first in it. A product of two values gets a number as its
    `scaling`.
    """
    return _Tidy(without_neutral_masks(program)).run()


class _Tidy:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.depends = dependence(program)
        self.constants: list[Node] = []
        self.rest: dict[str, Node] = {}
        self.product: dict[str, str] = {}  # value that nothing but a fold would read → the product that it comes from
        self.renamed: dict[str, str] = {}

    def run(self) -> Program:
        self.constants = [n for n in self.program.nodes if self.depends[n.name] is Depends.WEIGHTS]
        for node in self.program.nodes:
            if self.depends[node.name] is Depends.WEIGHTS:
                continue
            if isinstance(node, Function) and self._fold(node):
                continue
            if isinstance(node, Linear) and self.depends[node.weight] is not Depends.WEIGHTS:
                self._split(node)
                continue
            self.rest[node.name] = node.reading(self._rename)
            if isinstance(node, Product):
                self.product[node.name] = node.name
            elif isinstance(node, Function) and node.op == "aten.dropout.default":
                self._pass_on(node.reads[0], node.name)
        output = map_arguments(self.program.output, lambda x: Ref(self._rename(x.name)) if isinstance(x, Ref) else x)
        nodes = (*self.constants, *self.rest.values())
        return replace(self.program, nodes=nodes, output=output).without_dead_nodes()

    def _split(self, node: Linear) -> None:
        """A linear product whose weight is computed: a product of two values, and a sum."""
        node = node.reading(self._rename)
        shape = self.program[node.weight].shape
        turned = Function(
            f"{node.name}.t", (shape[1], shape[0]), node.dtype, node.module, "aten.t.default", (Ref(node.weight),)
        )
        name = node.name if node.bias is None else f"{node.name}.matmul"
        product = Matmul(name, node.shape, node.dtype, node.module, a=node.x, b=turned.name)
        self.rest.update({turned.name: turned, name: product})
        if node.bias is not None:
            args = (Ref(name), Ref(node.bias))
            self.rest[node.name] = Function(node.name, node.shape, node.dtype, node.module, "aten.add.Tensor", args)

    def _rename(self, name: str) -> str:
        return self.renamed.get(name, name)

    def _pass_on(self, source: str, name: str) -> None:
        if source in self.product and self._read_once(source):
            self.product[name] = self.product[source]

    def _read_once(self, name: str) -> bool:
        return len(self.program.readers[name]) == 1 and name not in self.program.returned

    def _fold(self, node: Function) -> bool:
        """Fold a function into the product that it reads, if it can be."""
        if node.op not in (*_TIMES, *_DIVIDED, *_PLUS) or len(node.args) < 2:
            return False
        left, right = node.args[:2]
        for value, constant in ((left, right), (right, left)):
            if not isinstance(value, Ref) or (node.op in _DIVIDED and value is right):
                continue
            if value.name not in self.product or not self._read_once(value.name):
                continue
            if isinstance(constant, Ref) and self.depends[constant.name] is not Depends.WEIGHTS:
                continue
            product = self.rest[self.product[value.name]]
            if (node.shape, node.dtype) != (product.shape, product.dtype):  # the constant has more dimensions, say
                continue
            folded = self._folded(node, product, constant)
            if folded is not None:
                self.rest[product.name] = folded
                self.renamed[node.name] = self._rename(value.name)
                self.product[node.name] = product.name
                return True
        return False

    def _folded(self, node: Function, product: Node, constant: Any) -> Node | None:
        if isinstance(product, Matmul):
            if not isinstance(constant, (int, float)) or node.op in _PLUS:
                return None
            factor = float(constant) if node.op in _TIMES else 1 / float(constant)
            return replace(product, scaling=product.scaling * factor)
        assert isinstance(product, (Linear, Convolution))
        weight = self._constant(product.weight)
        if weight is None:
            return None
        channels = weight.shape[0]
        if isinstance(constant, Ref):
            if not _per_channel(self.program[constant.name].shape, product, channels):
                return None
        elif node.op in _PLUS:
            return None
        # A module of its own that scales the output, such as a LayerScale, gives that output its name.
        inside = not node.module or product.module.startswith(node.module + ".")
        scaled_in = product.scaled_in if inside or node.op in _PLUS else node.module
        return self._with_constant(node, replace(product, scaled_in=scaled_in), weight, constant, channels)

    def _constant(self, name: str) -> Node | None:
        return next((node for node in self.constants if node.name == name), None)

    def _with_constant(
        self, node: Function, product: Linear | Convolution, weight: Node, constant: Any, channels: Any
    ) -> Node:
        vector = constant
        if isinstance(constant, Ref):
            vector = self._add(product, "aten.reshape.default", (channels,), constant, (channels,))
        bias = None if product.bias is None else Ref(product.bias)
        if node.op in _PLUS:
            bias = vector if bias is None else self._add(product, "aten.add.Tensor", (channels,), bias, vector)
            return replace(product, bias=bias.name)
        op = "aten.mul.Tensor" if node.op in _TIMES else "aten.div.Tensor"
        factor = vector
        if isinstance(vector, Ref):
            shape = (channels, *(1,) * (len(weight.shape) - 1))
            factor = self._add(product, "aten.reshape.default", shape, vector, shape)
        scaled = self._add(product, op, weight.shape, Ref(weight.name), factor)
        bias = None if bias is None else self._add(product, op, (channels,), bias, vector)
        return replace(product, weight=scaled.name, bias=None if bias is None else bias.name)

    def _add(self, product: Node, op: str, shape: Shape, *args: Any) -> Ref:
        name = f"{product.name}.folded~{len(self.constants)}"
        self.constants.append(Function(name, shape, product.dtype, product.module, op, args))
        return Ref(name)


def _per_channel(shape: Shape, product: Linear | Convolution, channels: Any) -> bool:
    """Whether a constant of this shape has one number for each output channel of the product."""
    place = 0 if isinstance(product, Linear) else len(product.stride)  # of the channels, counted from the right
    sizes = [*reversed(shape)]
    others = all(size == 1 for i, size in enumerate(sizes) if i != place)
    return len(sizes) > place and sizes[place] == channels and others
