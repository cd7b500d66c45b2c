"""Writes a forward pass down, operator by operator, while it happens."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spikezip.simulate.outputs import map_tensors
from spikezip.simulate.tape import Node, Operator, Places, Tape, grouped
from spikezip.spiking.unscaled import Unscaled

_VIEW = torch.ops.aten.view.default


class Recorder(TorchDispatchMode):
    """Inside a `with` block, writes down what is done with the results of sites; all else is constant.

    What it cannot write down, it refuses: `refused` then says why, and there is no tape. It sees operators of torch.
    What others make, such as numpy, looks constant to it, but `strange`. A second pass shows whether it is: then the
    same tensors come again.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.known = {id(x): x for x in known}  # constants: what the pass is given, and what operators make of them
        self.strange: dict[int, Tensor] = {}  # constants of which nobody knows where they come from
        self.nodes: list[Node] = []
        self.cells: list[Any] = []
        self.cell_of: dict[int, int] = {}  # by id: the tensors live in the cells
        self.maker: dict[int, Operator] = {}  # cell → what wrote it
        self.read: set[int] = set()
        self.constants: list[tuple[Tensor, int]] = []  # used by nodes, with their versions
        self.refused: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks: nothing is compiled in here, and its wrapper against that would double the time of recording."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.refused is None:
            self.note(function, args, kwargs or {}, result)
        return result

    def refuse(self, why: str) -> None:
        self.refused = self.refused or why

    def note(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Write down one operator, if it works on anything that may change."""
        schema, (places, constants) = function._schema, self.find(args)
        if kwargs and any(id(x) in self.cell_of for x in kwargs.values() if isinstance(x, Tensor)):
            self.refuse(f"{function} takes what may change as a keyword")
        elif schema.name.startswith(("aten::empty", "aten::new_empty")):
            pass  # memory is known when an operator has filled it
        elif torch.Tag.nondeterministic_seeded in function.tags:
            self.refuse(f"{function} draws random numbers")
        elif schema.is_mutable:
            self._note_change(function, args, kwargs, places, constants)
        elif not places:
            self.meet(constants)
            self.known |= {id(x): x for x in _listed(result) if isinstance(x, Tensor)}
        elif not all(isinstance(x, Tensor) for x in _listed(result)):
            self.refuse(f"{function} looks at the numbers")
        elif function is _VIEW and result.shape == args[0].shape:  # the same once more
            self.cell_of[id(result)] = places[0][2]
            self.known[id(result)] = result
        else:
            self.meet(constants)
            self.constants += [(x, _version(x)) for x in constants]
            node = Operator(function, _own(args), kwargs, places)
            self.append(node, _listed(result))
            self.maker |= dict.fromkeys(node.writes, node)

    def meet(self, constants: Iterable[Tensor]) -> None:
        """Look at tensors that seem constant, since no operator has made them of what may change."""
        for x in constants:
            if isinstance(x, Unscaled):
                self.refuse("a product that waits for its scale is used by an operator")
            elif id(x) not in self.known:
                self.strange[id(x)] = x

    def _note_change(
        self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], places: Places, constants: list[Tensor]
    ) -> None:
        """An operator in place belongs to the one that made its tensor, if nobody has read that in between."""
        if not places:
            self.meet(x for x in constants if x is not args[0])
            self.known[id(args[0])] = args[0]
            return
        cell = self.cell_of.get(id(args[0]), -1)
        maker = self.maker.get(cell)
        if not _changes_first(function) or maker is None or _is_view(maker) or cell in self.read or maker.writes[1:]:
            self.refuse(f"{function} changes what others have seen")
        else:
            self.meet(constants)
            self.constants += [(x, _version(x)) for x in constants]
            others = [place for place in places if place[0] > 0]
            maker.then(function, _own(args), kwargs, others)
            self.read.update(c for *_, c in others)
            self.nodes.remove(maker)
            self.nodes.append(maker)

    def find(self, args: Sequence[Any]) -> tuple[Places, list[Tensor]]:
        """Where the arguments hold tensors that may change, and the other tensors among them."""
        places: Places = []
        constants: list[Tensor] = []
        for i, argument in enumerate(args):
            if isinstance(argument, Tensor):
                candidates: Any = ((None, argument),)
            elif isinstance(argument, (tuple, list)):
                candidates = enumerate(argument)
            else:
                continue
            for j, x in candidates:
                if not isinstance(x, Tensor):
                    continue
                if id(x) in self.cell_of:
                    places.append((i, j, self.cell_of[id(x)]))
                else:
                    constants.append(x)
        return places, constants

    def append(self, node: Node, results: Sequence[Tensor]) -> None:
        """Put a node on the tape, and its results into cells."""
        self.read.update(node.reads)
        node.writes = self._give_cells(results)
        self.nodes.append(node)

    def inputs(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The cells of what a site or a product reads; a constant gets one of its own."""
        for x in tensors:
            if id(x) not in self.cell_of:
                self.meet([x])
                self._give_cells([x])
        return tuple(self.cell_of[id(x)] for x in tensors)

    def _give_cells(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        first = len(self.cells)
        self.cells += tensors
        cells = tuple(range(first, len(self.cells)))
        self.cell_of |= {id(x): cell for x, cell in zip(tensors, cells, strict=True)}
        return cells

    def tape(self, output: Any) -> Tape | None:
        """The tape of a pass that returned `output`."""
        final: dict[int, int] = {}

        def look(x: Tensor) -> Tensor:
            if id(x) in self.cell_of:
                final[id(x)] = self.cell_of[id(x)]
            else:
                self.meet([x])
            return x

        map_tensors(output, look)
        if any(_version(x) != version for x, version in self.constants):
            self.refuse("a constant has changed")
        if self.refused is not None:
            return None
        return Tape(grouped(self.nodes, final.values()), self.cells, output, final)


def tensors_of(network: Any) -> list[Tensor]:
    """Parameters and buffers of a network, or of the one whose method is given."""
    module = getattr(network, "__self__", network)
    return [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []


def watched_by(network: Any) -> str | None:
    """Why no pass of a network may be left out: somebody's hooks wait for it. Those of the libraries need not run."""
    module = getattr(network, "__self__", network)
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values()):
            if not (getattr(hook, "__module__", None) or "").startswith(("spikezip.", "transformers.")):
                return f"a hook on {type(part).__name__} waits for every step"
    return None


def _listed(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def _own(args: Sequence[Any]) -> list[Any]:
    return [list(x) if isinstance(x, (tuple, list)) else x for x in args]


def _is_view(node: Operator) -> bool:
    return any(result.alias_info is not None for result in node.steps[0][0]._schema.returns)


def _changes_first(function: Any) -> bool:
    """Whether an operator writes to its first argument, and to no other."""
    written = [
        i for i, x in enumerate(function._schema.arguments) if x.alias_info is not None and x.alias_info.is_write
    ]
    return written == [0]


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version
