"""Network → program: `torch.export` writes the forward pass down, this reads it.

Sizes become symbols, products become nodes of their own kind, everything else a function of the allow-list.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.export import Dim, ExportedProgram, default_decompositions, export
from torch.export.graph_signature import OutputKind
from torch.fx import Node as FxNode

from spikezip.errors import CoverageError, InputError
from spikezip.program import lower
from spikezip.program.nodes import Program

BATCH = "b"
_LOCK = RLock()  # torch.export is for one thread at a time: it puts stand-ins in the place of a model's tensors
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True)
class Captured:
    """A program, its tensors by key, and which modules return a bare tensor (for names)."""

    program: Program
    tensors: dict[str, Tensor]
    modules: Mapping[str, Any]


@torch.no_grad()
def capture(model: nn.Module, example: Mapping[str, Any] | Tensor, batch_dim: int = 0) -> Captured:
    """The program of `model(**example)`, with symbols for the batch and for lengths.

    Args:
        model: any module; it stays untouched.
        example: inputs by name, or the first input alone. Its values do not matter, its shapes do.
        batch_dim: the dimension of the inputs that counts samples.

    Example:
        >>> captured = capture(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4))
        >>> print(captured.program)
        input     [b, 4]  input
        0.linear  [b, 3]  product   input · 0.weightᵀ + 0.bias
        1.relu    [b, 3]  function  aten.relu.default(0.linear)
        returns 1.relu
    """
    inputs = _by_name(model, example)
    inputs = {k: _at_least_two(v, batch_dim) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with _LOCK, _quiet(model):
        exported, why = _export(model, inputs, batch_dim)
        return _read(model, exported, inputs, why)


def _by_name(model: nn.Module, example: Mapping[str, Any] | Tensor) -> dict[str, Any]:
    parameters = list(inspect.signature(type(model).forward).parameters)[1:]
    if isinstance(example, Tensor):
        name = getattr(model, "main_input_name", None)
        return {name if name in parameters else parameters[0]: example}
    if not isinstance(example, Mapping) or not example:
        raise InputError(f"an example is a tensor or a dict of model inputs, not {type(example).__name__}")
    given = {k: v for k, v in example.items() if v is not None}
    return {k: given[k] for k in (*(p for p in parameters if p in given), *(k for k in given if k not in parameters))}


def _at_least_two(x: Tensor, batch_dim: int) -> Tensor:
    """A batch of one would be taken for a constant: it is given twice."""
    return torch.cat([x, x], batch_dim) if x.ndim > batch_dim and x.shape[batch_dim] == 1 else x


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """The model as it is to be captured: in `eval()`, without autocast and a cache, attention as plain operations."""
    modes = {module: module.training for module in model.modules()}
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values()
    names = ("use_cache", "_attn_implementation", "_experts_implementation")
    before = [(config, name, getattr(config, name)) for config in configs for name in names if hasattr(config, name)]
    model.eval()
    try:
        choose: Any = getattr(model, "set_attn_implementation", None)
        if choose is not None and any(name == "_attn_implementation" for _, name, _ in before):
            choose("eager")
        for config, name, value in before:
            if name == "use_cache" and value:
                config.use_cache = False
            elif name == "_experts_implementation":  # every token with its own experts' weights: nothing depends on
                config._experts_implementation = "batched_mm"  # how many chose one
        with warnings.catch_warnings(), ExitStack() as without:
            warnings.simplefilter("ignore")
            for device in {"cpu", *(x.device.type for x in model.parameters() if x.device.type != "meta")}:
                without.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for config, name, value in before:
            setattr(config, name, value)


def _export(model: nn.Module, inputs: dict[str, Any], batch_dim: int) -> tuple[ExportedProgram, str]:
    """Export with symbols for batch and lengths; for the batch alone; or for this batch size only, and why."""
    why = ""
    for lengths in (True, False):
        try:
            return _try(model, inputs, _symbols(inputs, batch_dim, lengths)), ""
        except CoverageError:
            raise
        except Exception as error:  # torch raises dozens of kinds, for the same reason: it cannot follow the code
            why = why or _first_line(error)
    try:
        return _try(model, inputs, None), why
    except Exception as error:
        _check_example(model, inputs)
        raise CoverageError(
            f"{type(model).__name__} cannot be captured: {_first_line(error)}. torch.export must be able to follow "
            "its forward pass: replace control flow that depends on values, or convert the part of the model without it"
        ) from error


def _check_example(model: nn.Module, inputs: dict[str, Any]) -> None:
    """Refuse an example on which the model itself fails: then torch.export is not to blame."""
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} does not run on this example: {_first_line(error)}. Pass a batch that it takes"
        ) from error


def _try(model: nn.Module, inputs: dict[str, Any], shapes: Any) -> ExportedProgram:
    return _spelled_out(_functional(export(model, (), inputs, dynamic_shapes=shapes, strict=False)))


def _symbols(inputs: dict[str, Any], batch_dim: int, lengths: bool) -> dict[str, Any]:
    batch = Dim(BATCH, min=1, max=_MOST_SAMPLES)

    def dims(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim <= batch_dim:
            return None
        found: dict[int, Any] = {batch_dim: batch}
        # Tokens and frames come in any number; images keep their size, whose windows and patches would need proofs.
        other = 1 - batch_dim
        if x.ndim == 3 and not x.is_floating_point():  # several texts a sample, as many as in the example
            other = 2
        if lengths and x.ndim <= 3 and x.ndim > other and x.shape[other] > 1:
            found[other] = Dim.AUTO
        return found

    return {name: dims(x) for name, x in inputs.items()}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:")


def _functional(exported: ExportedProgram) -> ExportedProgram:
    """Without operations that write into a view of another tensor, or are unknown: those torch has to rewrite."""
    written = (node for node in exported.graph.nodes if lower.is_in_place(node))
    if not any(_writes_into_a_view(node) or not lower.is_known(node) for node in written):
        return exported
    return exported.run_decompositions({})


def _writes_into_a_view(node: FxNode) -> bool:
    target = node.args[0]
    # The result of an operation is fresh unless it is a view; a view's base would have to change as well.
    return not isinstance(target, FxNode) or target.op != "call_function" or lower.is_view(target)


def _spelled_out(exported: ExportedProgram) -> ExportedProgram:
    """With what torch makes of them in the place of operations that a program does not know: an LSTM, say.

    An operation stays if that holds unknown ones, too: the error is to name what the model calls.
    """
    missing = _unknown(exported)
    found = _decomposed(exported, missing)
    if not _unknown(found):
        return found
    helps = {op for op in missing if _unknown(_decomposed(exported, {op})) <= missing - {op}}
    return _decomposed(exported, helps)


def _unknown(exported: ExportedProgram) -> set[Any]:
    return {node.target for node in exported.graph.nodes if not lower.is_known(node)}


def _decomposed(exported: ExportedProgram, ops: set[Any]) -> ExportedProgram:
    """Without these operations, and without those that they are made of, as far as torch has decompositions."""
    rules = {**decomposition_table, **default_decompositions()} if ops else {}
    done = _unknown(exported) - ops
    while waiting := {op: rules[op] for op in _unknown(exported) - done if op in rules}:
        exported = exported.run_decompositions(waiting)
        done |= set(waiting)
    return exported


def _read(model: nn.Module, exported: ExportedProgram, inputs: dict[str, Any], why: str) -> Captured:
    signature = exported.graph_signature
    tensors: dict[str, Tensor] = {**exported.state_dict, **exported.constants}
    keys = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    keys.update(signature.inputs_to_lifted_tensor_constants)
    lifted = set(signature.inputs_to_lifted_tensor_constants.values())
    numbers = {key: x.item() for key, x in exported.constants.items() if key in lifted and x.ndim == 0}
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    names = _symbol_names(placeholders, set(signature.user_inputs))
    reader = lower.Reader(
        names={k: v[0] for k, v in names.items()},
        prefix=_prefix(model),
        keys=keys,
        parameters=frozenset(signature.inputs_to_parameters),
        numbers=numbers,
    )
    for node in exported.graph.nodes:
        reader.read(node)
    output = _structure(exported, reader)
    symbols = {new: (name, dim) for new, name, dim in names.values()}
    batch = BATCH if BATCH in symbols else None
    program = Program(
        tuple(reader.nodes),
        output,
        symbols,
        batch,
        fixed="" if batch else why or "torch.export took the batch size for a constant",
        output_class=_class_name(exported.call_spec.out_spec),
        prefix=_prefix(model),
        options={name: x for name, x in inputs.items() if isinstance(x, (bool, int, float, str))},
    ).without_dead_nodes()
    _check_used(model, program)
    used = {node.key for node in program.nodes if hasattr(node, "key")}
    return Captured(
        program,
        {key: tensor.detach() for key, tensor in tensors.items() if key in used},
        _modules(model, inputs, reader),
    )


def _check_used(model: nn.Module, program: Program) -> None:
    """Refuse inputs that are lost among a model's `**kwargs`: every batch would have to bring them."""
    takes = inspect.signature(type(model).forward).parameters
    names = [node.name for node in program.inputs if node.name not in takes]
    idle = [name for name in names if not program.readers[name] and name not in program.returned]
    if idle:
        raise InputError(f"{type(model).__name__} does not use {', '.join(idle)}: leave it out of the example")


def _modules(model: nn.Module, inputs: dict[str, Any], reader: "lower.Reader") -> dict[str, Any]:
    """Path → class of every module; `PATH()` says whether it returns one tensor and nothing else."""
    found: dict[str, Any] = {reader.short(name): type(module) for name, module in model.named_modules()}

    def note(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            found[f"{name}()"] = isinstance(output, Tensor)

        return hook

    handles = [m.register_forward_hook(note(reader.short(name))) for name, m in model.named_modules()]
    try:
        model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _symbol_names(placeholders: list[FxNode], given: set[str]) -> dict[str, tuple[str, str, int]]:
    """torch's symbol → our name for it, and the input and dimension that it is read from."""
    found: dict[str, tuple[str, str, int]] = {}
    lengths = iter(("n", "m", *(f"n{i}" for i in range(2, 99))))
    for node in placeholders:
        value = node.meta.get("val")
        if node.name not in given or not isinstance(value, Tensor):
            continue
        for dim, size in enumerate(value.shape):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is None or not expression.is_Symbol or str(expression) in found:
                continue
            name = BATCH if _is_batch(size) else next(lengths)
            found[str(expression)] = (name, str(node.target), dim)
    return found


def _is_batch(size: Any) -> bool:
    ranges = size.node.shape_env.var_to_range.get(size.node.expr)
    return ranges is not None and int(ranges.upper) == _MOST_SAMPLES if ranges.upper.is_Integer else False


def _prefix(model: nn.Module) -> str:
    """The name under which a Hugging Face model with a head holds its base model, left out of names."""
    prefix = getattr(model, "base_model_prefix", "")
    return f"{prefix}." if prefix and hasattr(model, prefix) else ""


def _structure(exported: ExportedProgram, reader: "lower.Reader") -> Any:
    """What the network returns, as nested dicts and lists of references."""
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    # Tensors that a forward pass writes to are returned first: what they become is not part of the output.
    written = sum(spec.kind is not OutputKind.USER_OUTPUT for spec in exported.graph_signature.output_specs)
    leaves = iter([reader.argument(x) for x in output.args[0][written:]])

    def build(spec: Any) -> Any:
        if spec.is_leaf():
            return next(leaves)
        children = (
            [build(child) for child in spec.children()]
            if callable(spec.children)
            else [build(child) for child in spec.children_specs]
        )
        if spec.type in (tuple, list):
            return tuple(children)
        keys = spec.context
        if isinstance(keys, tuple) and len(keys) and isinstance(keys[0], (list, tuple)):
            keys = keys[0]
        return dict(zip(keys, children, strict=True))

    return build(exported.call_spec.out_spec)


def _class_name(spec: Any) -> str:
    kind = spec.type
    return "" if kind in (None, tuple, list, dict) else f"{kind.__module__}.{kind.__qualname__}"
