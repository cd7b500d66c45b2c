"""Operations that a program does not know are spelled out by torch, and only these; the rest keeps its names."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikezip.engines.walk import collect
from spikezip.errors import CoverageError
from spikezip.program import capture as capturing
from spikezip.program.batch import sizes_of
from spikezip.program.capture import Captured, capture
from spikezip.program.functions import float_value
from spikezip.program.nodes import Input, Program, Weight
from spikezip.program.tidy import tidy


def evaluated(captured: Captured, program: Program, x: Tensor) -> Any:
    """What a program of floats returns for an input."""
    given = {node.name: x for node in program.inputs}
    sizes, values = sizes_of(program, given), dict(given)
    for node in program.nodes:
        if isinstance(node, Weight):
            values[node.name] = captured.tensors[node.key]
        elif not isinstance(node, Input):
            values[node.name] = float_value(node, values, sizes, x.device)
    return collect(program.output, values)


class Around(nn.Module):
    """A layer before and behind an operation."""

    def __init__(self, inside: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.first, self.inside, self.last = nn.Linear(4, 6), inside, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(self.first(x))
        return self.last(y[0] if isinstance(y, tuple) else y)


class Cell(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for i in range(2):
            state = self.cell(x[:, i], state)
        return state[0] if isinstance(state, tuple) else state


class Does(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


class Meet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.meet = nn.Bilinear(6, 6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.meet(x, torch.relu(x))


def turned(x: Tensor, weight: Tensor) -> Tensor:
    """Each sample's first row turns a grid, at which the sample is read."""
    places = F.affine_grid(x[:, 0].unflatten(-1, (2, 3)), [x.shape[0], 1, 3, 6], align_corners=False)
    return F.grid_sample(x[:, None], places, align_corners=False)[:, 0]


OPERATIONS = {
    "lstm": lambda: nn.LSTM(6, 6, batch_first=True),
    "gru": lambda: nn.GRU(6, 6, batch_first=True),
    "lstm cell": lambda: Cell(nn.LSTMCell(6, 6)),
    "gru cell": lambda: Cell(nn.GRUCell(6, 6)),
    "bilinear": Meet,
    "rrelu": nn.RReLU,
    "upsample": lambda: Does(lambda x, w: F.interpolate(x[:, None], size=(3, 6), mode="nearest-exact")[:, 0]),
    "addmv": lambda: Does(lambda x, w: x + torch.addmv(w[0, :3], w[:3], w[1])[:, None]),
    "affine grid": lambda: Does(turned),
    "sinc": lambda: Does(lambda x, w: torch.sinc(x)),
    "vdot": lambda: Does(lambda x, w: x * torch.vdot(w[0], w[1])),
    "einsum, one sum": lambda: Does(lambda x, w: torch.einsum("bnd,bmk->bnk", x, x)),
    "einsum, one tensor": lambda: Does(lambda x, w: x * torch.einsum("bnd->bd", x)[:, None]),
    "einsum, three": lambda: Does(lambda x, w: torch.einsum("bnd,de,fe->bnf", x, w, w)),
    "einsum, diagonal": lambda: Does(lambda x, w: x + torch.einsum("ii->i", w)),
    "in place": lambda: Does(lambda x, w: (x * 1).sinc_()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_names_stay(name: str) -> None:
    model = Around(OPERATIONS[name]()).eval().double()
    captured = capture(model, torch.randn(2, 3, 4, dtype=torch.float64))
    assert captured.program.batch == "b"
    assert [captured.program[f"{at}.linear"].module for at in ("first", "last")] == ["first", "last"]
    x = torch.randn(4, 3, 4, dtype=torch.float64)
    for program in (captured.program, tidy(captured.program)):
        found = evaluated(captured, program, x)
        torch.testing.assert_close(found, model(x))  # other orders of sums


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_size(mode: str) -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 4, mode=mode), nn.Linear(4, 3)).eval()
    captured = capture(model, torch.randint(9, (2, 5)))
    ids = torch.randint(9, (3, 7))
    assert captured.program.symbols.keys() == {"b", "n"}
    torch.testing.assert_close(evaluated(captured, captured.program, ids), model(ids))


def test_a_length_stays_a_symbol() -> None:
    program = capture(Around(Does(lambda x, w: torch.sinc(x))), torch.randn(2, 5, 4)).program
    assert [str(size) for size in program["last.linear"].shape] == ["b", "n", "3"]


def test_what_is_known_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(capturing, "default_decompositions", refuse)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert capture(layer, torch.randn(2, 5, 8)).program.batch == "b"


def test_what_leads_nowhere_is_named() -> None:
    """Not what it would be made of; and not what can be spelled out before it."""
    model = Around(Does(lambda x, w: torch.sinc(x) * torch.linalg.det(w)))
    with pytest.raises(CoverageError, match=r"aten.linalg_det.default in inside is not supported"):
        capture(model, torch.randn(2, 5, 4))


def test_control_flow_is_named() -> None:
    def either(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y @ weight, lambda y: y - 1, (x,))  # type: ignore[no-any-return]

    with pytest.raises(CoverageError, match=r"torch\.cond in inside: control flow.*torch\.where"):
        capture(Around(Does(either)), torch.randn(2, 5, 4))
