"""A program as a file: JSON with one node per line, and a reader that trusts nothing in it.

Tuples are arrays. What JSON has no word for is an object of one entry: `{"ref": NAME}` is the value of another node,
`{"size": […]}` depends on the batch, `{"dtype": NAME}`, `{"float": "inf"}`, and `{"dict": {…}}`. Fields at their
default are left out.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import torch

from spikezip.errors import CheckpointError, CoverageError
from spikezip.ops.grid import WEIGHT_BITS
from spikezip.program import functions
from spikezip.program.nodes import (
    KINDS,
    Function,
    Grid,
    Input,
    Node,
    Program,
    Ref,
    Rows,
    Shape,
    Site,
    Values,
    Weight,
)  # fmt: skip
from spikezip.program.sizes import Size

FORMAT, VERSION = "spikezip program", 1
# Far beyond any network: a Llama of 30 layers has some thousand nodes and a megabyte.
MOST_BYTES, MOST_NODES = 1 << 26, 1 << 18
_DEEPEST = 16  # arguments within arguments
_LONGEST = 10_000  # characters of a text
_LARGEST = 2**63 - 1
_DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float64": torch.float64, "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FLOATS = ("inf", "-inf", "nan")
_TEXTS = ("prefix", "fixed", "output_class")
_OPTIONS = "options"  # may be left out
_ENTRIES = {"format", "version", "symbols", "batch", *_TEXTS, "nodes", "output"}


# --- writing


def write(program: Program) -> str:
    """A program as text; `read` gives it back.

    Example:
        >>> from spikezip.program.capture import capture
        >>> program = capture(torch.nn.Linear(4, 3), torch.randn(2, 4)).program
        >>> print(write(program).splitlines()[11])
        {"kind": "Input", "name": "input", "shape": [["symbol", "b"], 4], "dtype": "float32"},
        >>> read(write(program)) == program
        True
    """
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "symbols": program.symbols, "batch": program.batch}
    head |= {name: getattr(program, name) for name in _TEXTS}
    head |= {_OPTIONS: {name: _encode(x) for name, x in program.options.items()}} if program.options else {}
    lines = [f"{_json(name)}: {_json(value)}," for name, value in head.items()]
    nodes = ",\n".join(_json(_from_node(node)) for node in program.nodes)
    return "\n".join(["{", *lines, '"nodes": [', nodes, "],", f'"output": {_json(_encode(program.output))}', "}", ""])


def _json(x: Any) -> str:
    return json.dumps(x, ensure_ascii=False, allow_nan=False)


def _from_node(node: Node) -> dict[str, Any]:
    given = {entry: getattr(node, entry.name) for entry in fields(node)}
    written = {e.name: _FIELDS[e.type][0](value) for e, value in given.items() if value != _default(e)}
    return {"kind": type(node).__name__, **written}


def _default(entry: "Field[Any]") -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise CoverageError(f"values of {dtype} cannot be stored")
    return _NAMES[dtype]


def _encode(x: Any) -> Any:
    if isinstance(x, Ref):
        return {"ref": x.name}
    if isinstance(x, Size):
        return {"size": x.to_json()}
    if isinstance(x, torch.dtype):
        return {"dtype": dtype_name(x)}
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": repr(x)}
    if isinstance(x, Mapping):
        return {"dict": {key: _encode(value) for key, value in x.items()}}
    if isinstance(x, tuple):
        return [_encode(value) for value in x]
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise CoverageError(f"an argument of the type {type(x).__name__} cannot be stored")


# --- reading


class BadFileError(ValueError):
    """What is wrong with a file and what to do, to be said behind its name."""


def read(text: str | bytes, where: str = "program.json") -> Program:
    """The program that `write` wrote; a `CheckpointError` for anything else. `where` names the file in errors.

    Nothing is run: operations are names of an allow-list, sizes are bounded, and nodes read earlier nodes only.

    Example:
        >>> read("{}", "net/program.json")
        Traceback (most recent call last):
        spikezip.errors.CheckpointError: net/program.json is not a program of spikezip: save the network again
    """
    try:
        return _program(parse_json(text, MOST_BYTES))
    except BadFileError as error:
        raise CheckpointError(f"{where} {error}") from None


def parse_json(text: str | bytes, most: int) -> Any:
    """Strict JSON: of bounded length, no name twice in an object, no constants that JSON does not have."""
    if len(text) > most:
        raise BadFileError(f"has more than {most} bytes: no network needs that many; save it again")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number of thousands of digits, nested too deep
        raise BadFileError(f"is damaged ({error}): save the network again") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _program(data: Any) -> Program:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadFileError("is not a program of spikezip: save the network again")
    if data.get("version") != VERSION:
        raise BadFileError(f"has version {str(data.get('version'))[:20]}, this spikezip reads {VERSION}: upgrade it")
    part = "its entries"
    found: dict[str, Node] = {}
    try:
        if set(data) - {_OPTIONS} != _ENTRIES:
            raise ValueError(f"one too many or too few: {', '.join(sorted(set(data) ^ _ENTRIES))[:200]}")
        symbols = {_text(name): _place(place) for name, place in _object(data["symbols"]).items()}
        batch = None if data["batch"] is None else _text(data["batch"])
        texts = {name: _text(data[name]) for name in _TEXTS}
        options = {_text(name): _option(x) for name, x in _object(data.get(_OPTIONS, {})).items()}
        if len(_list(data["nodes"])) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} nodes")
        for number, entry in enumerate(data["nodes"]):
            part = f"node {number}"
            node = _to_node(_object(entry))
            part = f"node {number}, {node.name!r}"
            _check_node(node, found, symbols)
            found[node.name] = node
        part = "its symbols"
        for symbol, (name, dim) in symbols.items():
            if not isinstance(found.get(name), Input) or dim >= len(found[name].shape):
                raise ValueError(f"{symbol!r} is read from {name!r}, dimension {dim}: no input has that")
        if batch is not None and batch not in symbols:
            raise ValueError(f"the batch {batch!r} is not among them")
        part = "its output"
        program = Program(tuple(found.values()), _decode(data["output"]), symbols, batch, **texts, options=options)
        _check_read(program.returned, found)
        _check_sizes(_sizes(program.output), symbols)
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"is damaged at {part} ({error}): save the network again") from None
    return program


def _to_node(data: dict[str, Any]) -> Node:
    kind = KINDS.get(_text(data.get("kind")))
    if kind is None:
        raise ValueError(f"there is no kind {data['kind']!r}")
    known = {entry.name: entry for entry in fields(kind)}
    odd = [name for name in data if name not in known and name != "kind"]
    odd += [name for name, entry in known.items() if name not in data and _default(entry) is MISSING]
    if odd:
        raise ValueError(f"a field too many or too few: {', '.join(odd)[:200]}")
    given: dict[str, Any] = {}
    for name, entry in known.items():
        try:
            if name in data:
                given[name] = _FIELDS[entry.type][1](data[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return kind(**given)


def _check_node(node: Node, found: Mapping[str, Node], symbols: Mapping[str, Any]) -> None:
    """Refuse a node that makes no sense behind those that were read before it."""
    if not node.name or node.name in found:
        raise ValueError("a node needs a name of its own")
    _check_read(node.reads, found)
    _check_sizes(_sizes(node.shape), symbols)
    if isinstance(node, Function):
        if node.op not in functions.KINDS:
            raise ValueError(f"{node.op!r} is not an operation that a program may hold")
        _check_sizes(_sizes((node.args, node.kwargs)), symbols)
    elif isinstance(node, Weight):
        if not node.key or _sizes(node.shape) or node.bits not in (None, *WEIGHT_BITS):
            raise ValueError("a weight needs a key, a fixed shape, and 8, 16 or no bits")
    elif isinstance(node, Site):
        if not (-32768 <= node.lo <= 0 < node.hi <= 32767 and node.levels <= 256):
            raise ValueError(f"codes from {node.lo} to {node.hi}")
    elif isinstance(node, Grid):
        if node.bits not in WEIGHT_BITS or (node.site is not None and not isinstance(found.get(node.site), Site)):
            raise ValueError("a grid has 8 or 16 bits, and may stand behind an earlier site")
    elif isinstance(node, Rows) and node.bits not in WEIGHT_BITS:
        raise ValueError("rows have 8 or 16 bits")
    elif isinstance(node, Values) and not isinstance(found[node.codes], Site):
        raise ValueError(f"{node.codes!r} is no site")


def _check_read(names: Iterable[str], found: Mapping[str, Node]) -> None:
    for name in names:
        if name not in found:
            raise ValueError(f"it reads {name!r}, and no node before has that name")


def _check_sizes(sizes: Iterable[Size], symbols: Mapping[str, Any]) -> None:
    for size in sizes:
        if not size.symbols <= symbols.keys():
            raise ValueError(f"nothing says what the symbols of {str(size)[:200]} stand for")


def _sizes(x: Any) -> list[Size]:
    if isinstance(x, Mapping):
        x = tuple(x.values())
    if isinstance(x, tuple):
        return [size for value in x for size in _sizes(value)]
    return [x] if isinstance(x, Size) else []


# --- what a field may hold


def _decode(x: Any, deepest: int = _DEEPEST) -> Any:
    if not deepest:
        raise ValueError(f"more than {_DEEPEST} arguments within one another")
    if isinstance(x, list):
        return tuple(_decode(value, deepest - 1) for value in x)
    if isinstance(x, dict):
        ((kind, value),) = x.items() if len(x) == 1 else (("", None),)
        if kind == "dict":
            return {_text(key): _decode(entry, deepest - 1) for key, entry in _object(value).items()}
        if kind not in _SPECIAL:
            raise ValueError(f"an argument is an object of one entry: dict, {', '.join(_SPECIAL)}")
        return _SPECIAL[kind](value)
    return x if x is None or isinstance(x, bool) else _PLAIN[type(x)](x)


def _option(x: Any) -> Any:
    found = _decode(x)
    if not isinstance(found, (bool, int, float, str)):
        raise ValueError("an option is a number, a text, true or false")
    return found


def _exactly(kind: type, what: str) -> Callable[[Any], Any]:
    def check(x: Any) -> Any:
        if type(x) is not kind:
            raise ValueError(f"{what} is needed")
        return x

    return check


_object, _list, _flag = _exactly(dict, "an object"), _exactly(list, "a list"), _exactly(bool, "true or false")


def _text(x: Any) -> str:
    # It may come onto a screen: nothing in it may move the cursor.
    if not isinstance(x, str) or len(x) > _LONGEST or not " ".join(x.split()).isprintable():
        raise ValueError("a printable text is needed")
    return x


def _whole(x: Any) -> int:
    if type(x) is not int or abs(x) > _LARGEST:
        raise ValueError("a whole number of 64 bits is needed")
    return x


def _float(x: Any) -> float:
    if type(x) is not float or not math.isfinite(x):  # 1e999 is JSON, and infinite
        raise ValueError("a finite number with a point is needed")
    return x


def _size(x: Any) -> int | Size:
    if isinstance(x, list):
        return Size.from_json(x)
    if _whole(x) < 0:
        raise ValueError("a size is not negative")
    return int(x)


def _place(x: Any) -> tuple[str, int]:
    if len(_list(x)) != 2 or _whole(x[1]) < 0:
        raise ValueError("an input and a dimension, counted from 0, are needed")
    return _text(x[0]), _whole(x[1])


def _one_of(choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    def check(x: Any) -> Any:
        if not isinstance(x, str) or x not in choices:
            raise ValueError(f"one of {', '.join(choices)} is needed")
        return choices[x]

    return check


def _tuple_of(read: Callable[[Any], Any], length: int | None = None) -> Callable[[Any], Any]:
    def check(x: Any) -> Any:
        if len(_list(x)) != (len(x) if length is None else length):
            raise ValueError(f"{length} entries are needed")
        return tuple(map(read, x))

    return check


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: None if x is None else read(x)


def _same(x: Any) -> Any:
    return x


to_dtype = _one_of(_DTYPES)
_PLAIN: dict[type, Callable[[Any], Any]] = {str: _text, int: _whole, float: _float}
_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "ref": lambda x: Ref(_text(x)),
    "size": Size.from_json,
    "dtype": to_dtype,
    "float": _one_of({name: float(name) for name in _FLOATS}),
}
# Type of a field → how it is written, and how it is read.
_FIELDS: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    str: (_same, _text),
    bool: (_same, _flag),
    int: (_same, _whole),
    float: (float, _float),
    str | None: (_same, _or_none(_text)),
    int | None: (_same, _or_none(_whole)),
    torch.dtype: (dtype_name, to_dtype),
    Shape: (lambda x: [s.to_json() if isinstance(s, Size) else s for s in x], _tuple_of(_size)),
    tuple[int, ...]: (_encode, _tuple_of(_whole)),
    tuple[tuple[int, int], ...]: (_encode, _tuple_of(_tuple_of(_whole, 2))),
    tuple[Any, ...]: (_encode, lambda x: _decode(_list(x))),
    Mapping[str, Any]: (lambda x: _encode(x)["dict"], lambda x: _decode({"dict": x})),
}
