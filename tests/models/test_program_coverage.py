"""What becomes of every part of a network, as a table, and as errors."""

import pytest
import torch
from families import build
from torch import nn

from spikezip.errors import CoverageError
from spikezip.program.coverage import coverage
from spikezip.program.functions import Kind
from spikezip.quant.network import quantize


def test_a_model_of_transformers_needs_no_example() -> None:
    model = build("yolos")
    found = coverage(model)
    assert found.complete
    assert not found.problems
    qann = quantize(model, example=torch.ones(2, 3, 32, 32))
    assert set(found.sites) == set(qann.sites)
    assert set(found.functions) <= {kind.value for kind in Kind}
    reading = [sites for sites in found.products.values() if sites]
    assert {site for sites in reading for site in sites} <= set(found.sites)
    text = str(found)
    assert "linear product, reads" in text
    assert "sum" in text
    assert text.endswith("complete")
    assert all(site in text for site in found.sites)


class Decides(nn.Module):
    """Its forward pass depends on values, which torch.export cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else x


def test_a_model_that_cannot_be_captured_has_problems() -> None:
    example = torch.randn(2, 4)
    found = coverage(Decides(), example)
    assert not found.complete
    assert found.problems[0].startswith("Decides cannot be captured: ")
    assert str(found).endswith("Decides cannot be converted")
    with pytest.raises(CoverageError) as caught:
        quantize(Decides(), example=example)
    reason, *rest = str(caught.value).splitlines()
    assert reason == found.problems[0].partition("\n")[0]
    assert len(rest) == 1
    assert caught.value.coverage.problems == found.problems


def test_a_network_without_spikes_is_listed_as_far_as_it_is_known() -> None:
    found = coverage(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    assert not found.complete
    assert "nothing in it would spike" in found.problems[0]
    assert ("0", "input layer") in found.rows


def test_an_example_is_asked_for() -> None:
    assert "pass example=batch" in coverage(nn.Linear(4, 4)).problems[0]
