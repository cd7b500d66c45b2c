"""A batch as a program takes it: inputs by name, complete, on one device."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.program.functions import KINDS, Kind
from spikezip.program.nodes import Function, Input, Node, Program
from spikezip.program.sizes import Size, bind, plus

Batch: TypeAlias = Mapping[str, Any] | Tensor

LABELS = ("labels", "label", "start_positions", "end_positions")
# Arguments of a forward pass that say what it returns; a program returns what it was captured with.
_SWITCHES = ("return_dict", "use_cache", "logits_to_keep", "num_items_in_batch")
_AS_THEY_ARE = ("aten.reshape.default", "aten.to.dtype", "aten.unsqueeze.default", "aten.expand.default")
_IDS = ("input_ids", "inputs", "input_values", "input_features")


def named(program: Program, batch: Batch, main: str | None = None) -> dict[str, Any]:
    """A batch as a dict of inputs; a tensor alone is the input `main`, or the first one."""
    if isinstance(batch, Tensor):
        return {main if main is not None and main in program else program.inputs[0].name: batch}
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"a batch is a tensor or a dict of model inputs, not {type(batch).__name__}")
    return dict(batch)


def by_position(
    program: Program, args: tuple[Any, ...], named: Mapping[str, Any], main: str | None = None
) -> dict[str, Any]:
    """The inputs of a call: those without a name in the program's order; one alone is the input `main`, or a batch."""
    if len(args) == 1 and isinstance(args[0], Mapping) and not named:
        return dict(args[0])
    names = [node.name for node in program.inputs]
    if len(args) == 1 and main in names:
        names = [main]
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        raise InputError(f"{len(args)} inputs by position: the network takes {', '.join(names)}; give others by name")
    twice = [name for name in given if name in named]
    if twice:
        raise InputError(f"{twice[0]} is given by position and by name")
    return {**given, **named}


def as_batches(batches: Iterable[Batch] | Batch) -> Iterable[Batch]:
    """Several batches; one alone may be given in their place."""
    return [batches] if isinstance(batches, (Mapping, Tensor)) else batches


def sample_count(program: Program, inputs: Mapping[str, Any]) -> int:
    """How many samples the inputs of a program hold."""
    name, dim = program.symbols.get(program.batch or "", (program.inputs[0].name, 0))
    return int(inputs[name].shape[dim])


def complete(program: Program, batch: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """The inputs of a program from a batch that may leave out what has a neutral value, or hold more.

    Missing masks become ones, missing token types zeros, missing positions a count over the mask. Labels, None,
    options as they were at the capture, and masks of ones that the program does not know are dropped. Tensors go to
    `device`.
    """
    wanted = [node.name for node in program.inputs]
    given = {k: v for k, v in batch.items() if v is not None and k not in (*LABELS, *_SWITCHES)}
    for name in [name for name in given if name not in wanted]:
        value = given.pop(name)
        if isinstance(value, (bool, int, float, str)) and value == program.options.get(name, False):
            continue
        if name in _MASKS and isinstance(value, Tensor) and bool((value == 1).all()):
            continue
        raise InputError(_unknown(program, name, value, wanted))
    for node in program.inputs:
        if node.name in given:
            _check_kind(node, given[node.name])
    inputs = {}
    for name in wanted:
        value = given[name] if name in given else _neutral(name, given)
        if value is None:
            raise InputError(
                f"the batch holds no {name!r}: the network was captured with {', '.join(wanted)}; give it, or "
                f"quantize again with example=batch without {name}"
            )
        if value.numel() == 0:
            raise InputError(f"the batch is empty: {name} has the shape {list(value.shape)}")
        inputs[name] = value
    check_ids(program, {name: x for name, x in inputs.items() if x.device.type == "cpu"})
    return inputs if device is None else {name: x.to(device) for name, x in inputs.items()}


def _check_kind(node: Node, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"{node.name} is of the type {type(x).__name__}: give a tensor, as torch.as_tensor makes it")
    if x.is_complex() and not node.dtype.is_complex:
        raise InputError(f"{node.name} holds complex numbers, but {node.dtype} is needed: give .real, or .abs()")
    if x.is_floating_point() and not (node.dtype.is_floating_point or node.dtype.is_complex):
        raise InputError(f"{node.name} holds {x.dtype}, but whole numbers are needed, as the example had: give .long()")


def check_ids(program: Program, inputs: Mapping[str, Any]) -> None:
    """Refuse numbers for which a table has no row, where a table is read with the numbers of an input as they are."""
    for name, (table, rows) in program.derived(_tables).items():
        if name not in inputs:
            continue
        least, most = (int(x) for x in torch.stack(inputs[name].aminmax()))
        if least < 0 or most >= rows:
            raise InputError(
                f"{name} holds the number {least if least < 0 else most}, but {table} has the rows 0 to {rows - 1}: "
                "use the tokenizer that belongs to the model"
            )


def _tables(program: Program) -> dict[str, tuple[str, int]]:
    """Input → the smallest table that is read with its numbers, and how many rows that has."""
    found: dict[str, tuple[str, int]] = {}
    for node in program.nodes:
        if not isinstance(node, Function) or node.op != "aten.embedding.default":
            continue
        table, ids = (program[name] for name in node.reads[:2])
        while isinstance(ids, Function) and ids.op in _AS_THEY_ARE:
            ids = program[ids.reads[0]]
        rows = table.shape[0]
        if isinstance(ids, Input) and isinstance(rows, int) and rows < found.get(ids.name, ("", rows + 1))[1]:
            found[ids.name] = table.name, rows
    return found


def sizes_of(program: Program, inputs: Mapping[str, Any]) -> dict[str, int]:
    """What the symbols stand for in a batch, after checking that it fits the program."""
    missing = [node.name for node in program.inputs if node.name not in inputs]
    unknown = [name for name in inputs if name not in {node.name for node in program.inputs}]
    if missing or unknown:
        takes = ", ".join(node.name for node in program.inputs)
        which = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise InputError(f"a batch {which}: the network was captured with the inputs {takes}; give these")
    for name, dim in program.symbols.values():
        if inputs[name].ndim <= dim:
            shown = ", ".join(map(str, program[name].shape))
            raise InputError(f"{name} has the shape {list(inputs[name].shape)}, but [{shown}] is needed")
    sizes = {symbol: inputs[name].shape[dim] for symbol, (name, dim) in program.symbols.items()}
    for node in program.inputs:
        wanted = tuple(bind(size, sizes) for size in node.shape)
        if tuple(inputs[node.name].shape) != wanted:
            shown = ", ".join(map(str, node.shape))
            raise InputError(
                f"{node.name} has the shape {list(inputs[node.name].shape)}, but [{shown}] is needed"
                + ("" if program.batch else f": the network was captured for this batch size only ({program.fixed})")
            )
    for what, size, most in program.derived(_limits):
        if bind(size, sizes) > most:
            raise InputError(
                f"{_read_from(program, size)} is too long: {what} holds {most} places, and {bind(size, sizes)} are "
                "needed. Give a shorter one, such as fewer tokens"
            )
    return sizes


def _limits(program: Program) -> list[tuple[str, Size, int]]:
    """What a network holds for a number of places, as embeddings of positions: its name, places needed, places held."""
    found = []
    for node in program.nodes:
        if not isinstance(node, Function) or not node.reads:
            continue
        table = program[node.reads[0]]
        if node.op == "aten.slice.Tensor":
            places = list(zip(node.shape, table.shape, strict=True))
        elif node.op == "aten.embedding.default" and (counted := _counted(program, node.reads[1])) is not None:
            places = [(counted, table.shape[0])]
        else:
            continue
        found += [(table.name, n, m) for n, m in places if isinstance(n, Size) and isinstance(m, int)]
    return found


def _counted(program: Program, name: str) -> Any:
    """The size that numbers count up to, if they do nothing else."""
    node, first = program[name], 0
    while isinstance(node, Function) and node.op != "aten.arange.default":
        if node.op == "aten.add.Tensor" and isinstance(node.args[1], int):
            first += node.args[1]
        elif KINDS[node.op] is not Kind.MOVE:
            return None
        node = program[node.reads[0]]
    return plus(node.args[0], first) if isinstance(node, Function) else None


def _read_from(program: Program, size: Size) -> str:
    """The inputs that a size is read from, with their dimensions."""
    places = (program.symbols[symbol] for symbol in sorted(size.symbols))
    return " and ".join(f"{name} along dimension {dim}" for name, dim in places)


def _unknown(program: Program, name: str, value: Any, wanted: list[str]) -> str:
    if isinstance(value, (bool, int, float, str)):
        was = f"with {name}={program.options[name]!r}" if name in program.options else f"without {name}"
        return f"{name}={value!r}: the network was captured {was}, and computes that; leave {name} out"
    return (
        f"the batch holds {name!r}, but the network was captured with {', '.join(wanted)} only: leave it out, or "
        f"quantize again with example=batch including {name}"
    )


def _neutral(name: str, given: Mapping[str, Any]) -> Tensor | None:
    rule = _NEUTRAL.get(name)
    return None if rule is None else rule(given)


def _ones(*like: str) -> Callable[[Mapping[str, Any]], Tensor | None]:
    def rule(given: Mapping[str, Any]) -> Tensor | None:
        ids = next((given[key] for key in like if isinstance(given.get(key), Tensor)), None)
        return None if ids is None else torch.ones(ids.shape[:2], dtype=torch.long, device=ids.device)

    return rule


def _pixels(given: Mapping[str, Any]) -> Tensor | None:
    x = given.get("pixel_values")
    return None if x is None else torch.ones((x.shape[0], *x.shape[-2:]), dtype=torch.long, device=x.device)


def _types(given: Mapping[str, Any]) -> Tensor | None:
    ids = given.get("input_ids")
    return None if ids is None else torch.zeros_like(ids)


def _positions(given: Mapping[str, Any]) -> Tensor | None:
    """As `generate` of transformers counts them: padding on the left does not count."""
    ids = given.get("input_ids")
    if ids is None:
        return None
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.long()
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


_NEUTRAL: dict[str, Callable[[Mapping[str, Any]], Tensor | None]] = {
    "attention_mask": _ones(*_IDS),
    "decoder_attention_mask": _ones("decoder_input_ids"),
    "pixel_mask": _pixels,
    "token_type_ids": _types,
    "position_ids": _positions,
}
_MASKS = ("attention_mask", "decoder_attention_mask", "pixel_mask")
