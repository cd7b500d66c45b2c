"""Masks that mask nothing leave the program; all others stay."""

import families
import pytest
import tiny_models
import torch
from torch import nn

from spikezip.program.capture import capture
from spikezip.program.masks import without_neutral_masks
from spikezip.program.nodes import Function, Program


def masks(program: Program) -> list[str]:
    """The sums that a softmax reads."""
    softmax = [node for node in program.nodes if isinstance(node, Function) and node.op == "aten.softmax.int"]
    sums = [program[node.reads[0]] for node in softmax]
    return [node.name for node in sums if isinstance(node, Function) and node.op == "aten.add.Tensor"]


@pytest.mark.parametrize("name", ["ViTForImageClassification", "Dinov2Model"])
def test_nothing_is_masked_in_an_image(name: str) -> None:
    model = tiny_models.make(name)
    program = capture(model, tiny_models.inputs(model)).program
    tidied = without_neutral_masks(program)
    assert masks(program)
    assert not masks(tidied)
    assert not any("arange" in node.name for node in tidied.nodes)
    assert without_neutral_masks(tidied) is tidied


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_padding_and_the_future_stay_masked(name: str) -> None:
    model = tiny_models.make(name)
    program = capture(model, tiny_models.inputs(model)).program
    assert masks(without_neutral_masks(program)) == masks(program) != []


def test_a_window_stays_masked() -> None:
    """Tokens far apart do not meet: what is compared are two counts, of which neither is always the larger."""
    program = capture(families.build("modernbert"), families.FAMILIES["modernbert"].batch(0)).program
    assert masks(without_neutral_masks(program)) == masks(program) != []


class Shifted(nn.Module):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(x.shape[1]) + self.shift >= 0
        return x + torch.where(seen, torch.zeros(()), -5.0)


@pytest.mark.parametrize(("shift", "stays"), [(0, False), (2, False), (-1, True)])
def test_what_is_zero_for_every_length_is_left_out(shift: int, stays: bool) -> None:
    program = capture(Shifted(shift), torch.randn(2, 7)).program
    found = without_neutral_masks(program)
    assert any("add" in node.name and node.name in found.returned for node in found.nodes) == stays
