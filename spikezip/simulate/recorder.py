"""Writes a forward pass down, operator by operator, while it happens."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spikezip.simulate.entry import Entry, Look
from spikezip.simulate.outputs import map_tensors
from spikezip.simulate.tape import Node, Operator, Places, Tape, grouped
from spikezip.spiking.unscaled import Unscaled

_DETACH = torch.ops.aten.detach.default
_INDEX = torch.ops.aten.index.Tensor
_VIEW = torch.ops.aten.view.default


class Recorder(TorchDispatchMode):
    """Inside a `with` block, writes down what is done with the results of sites and with inputs; all else is constant.

    What it cannot write down, it refuses: `refused` then says why, and there is no tape. It sees operators of torch.
    What others make, such as numpy, looks constant to it, but `strange`. A second pass shows whether it is: then the
    same tensors come again. What follows from the inputs alone is constant during a run: where it cannot be written
    down, there is a tape for these inputs only.
    """

    def __init__(self, known: Iterable[Tensor], inputs: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.entry = Entry()
        self.known = {id(x): x for x in known}  # constants: what the pass is given, and what operators make of them
        self.strange: dict[int, Tensor] = {}  # constants of which nobody knows where they come from
        self.nodes: list[Node] = []
        self.cells: list[Any] = []
        self.cell_of: dict[int, int] = {}  # by id: the tensors live in the cells
        self.maker: dict[int, Operator] = {}  # cell → what wrote it
        self.read: set[int] = set()
        # Used by nodes, with their versions: those that run in every step, and those that run once for an input.
        self.constants: list[tuple[Tensor, int]] = []
        self.early_constants: list[tuple[Tensor, int]] = []
        self.refused: str | None = None
        for name, x in (inputs or {}).items():
            if isinstance(x, Tensor):
                self.entry.roots[name] = self.cell_of[id(x)] if id(x) in self.cell_of else self._give_cells([x])[0]
        self.entry.cells.update(self.entry.roots.values())

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
        named = [self.cell_of[id(x)] for x in kwargs.values() if isinstance(x, Tensor) and id(x) in self.cell_of]
        if any(cell not in self.entry.cells for cell in named):
            self.refuse(f"{function} takes what may change as a keyword")
            return
        if named:
            self.entry.only(f"{function} takes what follows from the input as a keyword")
        if schema.name.startswith(("aten::empty", "aten::new_empty")):
            pass  # memory is known when an operator has filled it
        elif torch.Tag.nondeterministic_seeded in function.tags:
            self.refuse(f"{function} draws random numbers")
        elif schema.is_mutable:
            self._note_change(function, args, kwargs, places, constants)
        elif not places:
            self.meet(constants)
            self._know(result)
        elif self._is_same(function, args, places, result):
            self.cell_of[id(result)] = places[0][2]
            self.known[id(result)] = result
        else:
            self.meet(constants)
            self._note_result(function, args, kwargs, places, constants, result)

    def _note_result(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        places: Places,
        constants: list[Tensor],
        result: Any,
    ) -> None:
        early = self._is_early(places)
        results = _listed(result)
        if not early and torch.Tag.dynamic_output_shape in function.tags and not self._picks(function, places):
            self.refuse(f"{function} makes a result whose size depends on the numbers")
        elif all(isinstance(x, Tensor) for x in results):
            node = Operator(function, _own(args), kwargs, places)
            self._depend(constants, places, early)
            self.append(node, results, early)
            self.maker |= dict.fromkeys(node.writes, node)
        elif not early:
            self.refuse(f"{function} looks at the numbers")
        elif any(isinstance(x, Tensor) for x in results):
            self.entry.only(f"{function} looks at the numbers of the input")
            self._know(result)
        else:
            self._depend(constants, places, early)
            self.append(Look(function, _own(args), kwargs, places, result), [], early)

    def _is_same(self, function: Any, args: Sequence[Any], places: Places, result: Any) -> bool:
        """Whether this is the same tensor once more."""
        if function is _DETACH:  # comes with `zeros_like`
            return self._is_early(places)
        return function is _VIEW and bool(result.shape == args[0].shape)

    def _picks(self, function: Any, places: Places) -> bool:
        """Whether elements are picked by constants, or by their numbers: how many these are is known."""
        counted = (torch.bool, torch.uint8)
        return function is _INDEX and not any(i == 1 and self.cells[c].dtype in counted for i, _, c in places)

    def _is_early(self, places: Places) -> bool:
        """Whether all that may change there follows from the input alone."""
        return all(cell in self.entry.cells for *_, cell in places)

    def _depend(self, constants: Iterable[Tensor], places: Places, early: bool) -> None:
        """These must stay as they are, once they have been used."""
        lasting = [self.cells[cell] for *_, cell in places if cell in self.entry.cells]
        used = self.early_constants if early else self.constants
        used += [(x, _version(x)) for x in (*constants, *lasting)]

    def _know(self, result: Any) -> None:
        self.known |= {id(x): x for x in _listed(result) if isinstance(x, Tensor)}

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
        early, cell = self._is_early(places), self.cell_of.get(id(args[0]), -1)
        maker = None if cell in self.read or early != (cell in self.entry.cells) else self.maker.get(cell)
        if maker is not None and _changes_first(function) and not _is_view(maker) and not maker.writes[1:]:
            self.meet(constants)
            others = [place for place in places if place[0] > 0]
            self._depend(constants, others, early)
            maker.then(function, _own(args), kwargs, others)
            self.read.update(c for *_, c in others)
            nodes = self.entry.nodes if early else self.nodes
            nodes.remove(maker)
            nodes.append(maker)
        elif early:
            self.meet(x for x in constants if x is not args[0])
            self.entry.only(f"{function} changes what others have seen of the input")
            self.known[id(args[0])] = args[0]
        else:
            self.refuse(f"{function} changes what others have seen")

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

    def append(self, node: Node, results: Sequence[Tensor], early: bool = False) -> None:
        """Put a node on the tape, and its results into cells; an early one is done before the first step."""
        self.read.update(node.reads)
        node.writes = self._give_cells(results)
        if early:
            self.entry.nodes.append(node)
            self.entry.cells.update(node.writes)
        else:
            self.nodes.append(node)

    def inputs(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The cells of what a site or a product reads; a constant gets one of its own."""
        for x in tensors:
            if id(x) not in self.cell_of:
                self.meet([x])
                self._give_cells([x])
                self.constants.append((x, _version(x)))
            elif self.cell_of[id(x)] in self.entry.cells:
                self.constants.append((x, _version(x)))
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
            if id(x) not in self.cell_of:
                self.meet([x])
                self.entry.only("the network returns a constant")
                return x
            place = torch.empty(0)  # where its cell's tensor will be
            final[id(place)] = self.cell_of[id(x)]
            return place

        recorded = map_tensors(output, look)
        if any(_version(x) != version for x, version in self.constants):
            self.refuse("a constant has changed")
        if any(_version(x) != version for x, version in self.early_constants):
            self.entry.only("what the input met on its way has changed")
        if self.strange:
            self.entry.only("the network uses tensors of unknown origin")
        if self.refused is not None:
            return None
        return Tape(self.entry, grouped(self.nodes, final.values()), self.cells, recorded, final)


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
