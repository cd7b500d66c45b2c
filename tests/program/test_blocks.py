"""Programs in blocks: what enters each is one value, and together they are the program."""

from itertools import pairwise
from typing import Any

import pytest
import tiny_models
import torch
from torch import nn

import spikezip
from spikezip.program.blocks import block_name, blocks_of
from spikezip.program.nodes import Program, Weight


def placed(name: str, placement: str) -> Program:
    model = tiny_models.make(name)
    config = spikezip.QuantConfig(placement=placement)
    program: Program = spikezip.quantize(model, config, example=tiny_models.inputs(model)).program
    return program


@pytest.mark.parametrize("placement", ["paper", "products"])
@pytest.mark.parametrize(
    "name",
    ["ViTForImageClassification", "BertForSequenceClassification", "LlamaForCausalLM", "SwinForImageClassification"],
)
def test_blocks_are_the_program_and_one_value_enters_each(name: str, placement: str) -> None:
    program = placed(name, placement)
    blocks = blocks_of(program)
    assert len(blocks) > 2
    moving = [node.name for node in program.moving]
    assert [node.name for block in blocks for node in block.nodes if node.name in program.varying] == moving
    for before, block in pairwise(blocks):
        inside = {node.name for node in block.nodes}
        entering = {name for node in block.nodes for name in node.reads if name in program.varying} - inside
        assert entering == {before.end}
        assert block.sites


def test_a_block_of_a_transformer_is_a_layer() -> None:
    blocks = blocks_of(placed("ViTForImageClassification", "products"))
    names = [{block_name(site) for site in block.sites} for block in blocks]
    assert names[:2] == [{"layers.0"}, {"layers.1"}]
    assert all(key.startswith("vit.layers.0.") for key in blocks[0].weights)
    assert "vit.layers.0.attention.q_proj.weight" in blocks[0].weights


class Twice(nn.Module):
    """One layer, used in two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.shared = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = self.shared(torch.tanh(layer(x)))
        return x


def test_weights_of_several_blocks_belong_to_none() -> None:
    program = spikezip.quantize(Twice(), example=torch.randn(2, 8)).program
    blocks = blocks_of(program)
    assert len(blocks) > 1
    assert any("shared.weight" in {n.key for n in block.nodes if isinstance(n, Weight)} for block in blocks[1:])
    own = [key for block in blocks for key in block.weights]
    assert not [key for key in own if key.startswith("shared")]
    assert len(own) == len(set(own))
