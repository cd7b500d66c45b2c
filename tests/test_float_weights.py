"""`weight_bits=None`, the paper's setting: exact in float64; in float32 `verify` reports what it finds."""

from pathlib import Path

import pytest
import tiny_models
import torch

import spikezip
from spikezip.spiking.synapse import SpikingInput, SpikingLinear

NAMES = ["ViTForImageClassification", "BertForSequenceClassification", "GPT2LMHeadModel", "LlamaForCausalLM"]


def networks(name: str, dtype: torch.dtype) -> tuple:
    model = tiny_models.make(name).to(dtype)
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in tiny_models.inputs(model).items()}
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16, weight_bits=None))
    spikezip.calibrate(qann, [batch])
    return qann, spikezip.convert(qann), batch


@pytest.mark.parametrize("engine", ["folded", "spike", "event"])
@pytest.mark.parametrize("name", NAMES)
def test_exact_in_float64(name: str, engine: str) -> None:
    qann, snn, batch = networks(name, torch.float64)
    certificate = spikezip.verify(qann, snn, [batch], engine=engine)
    # Codes are integers and must be equal. Logits are float sums in another order here: see the next assertion.
    assert certificate.mismatches == 0
    assert certificate.unsettled == 0
    run = spikezip.simulate(snn, batch, "equilibrium", engine)
    with torch.no_grad():
        expected = qann.eval()(**batch).logits
    # The head's product sums floats in the order of the batch's shape, which only integers are immune to.
    torch.testing.assert_close(run.logits, expected, rtol=1e-12, atol=1e-12)


def test_a_planted_mismatch_is_reported_at_its_site() -> None:
    """One weight of the spiking network moved: the first site behind it differs, and verify says which."""
    qann, snn, batch = networks("ViTForImageClassification", torch.float32)
    target = snn.get_submodule("vit.layers.1.mlp.fc1")
    target.codes[3] += 1.0
    target._parts = None
    certificate = spikezip.verify(qann, snn, [batch])
    assert not certificate.exact
    assert certificate.mismatches > 0
    assert certificate.first_mismatch is not None
    assert certificate.first_mismatch["site"] == "layers.1.mlp.activation_fn"
    assert certificate.first_mismatch["index"][-1] == 3
    assert certificate.first_mismatch["qann"] != certificate.first_mismatch["snn"]
    assert "layers.1.mlp.activation_fn" in str(certificate)


def test_a_planted_scale_is_reported_in_the_integer_network() -> None:
    model = tiny_models.make("BertForSequenceClassification")
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), [batch])
    snn = spikezip.convert(qann)
    snn.neurons["encoder.layer.1.attention.self.v"].scale.mul_(1.3)
    certificate = spikezip.verify(qann, snn, [batch])
    assert certificate.first_mismatch is not None
    assert certificate.first_mismatch["site"] == "encoder.layer.1.attention.self.v"


def test_float32_verdict_is_the_truth() -> None:
    """Whatever the verdict in float32 is, it is what comparing by hand gives."""
    from spikezip.execution import executing
    from spikezip.measure.equivalence import Recording

    qann, snn, batch = networks("LlamaForCausalLM", torch.float32)
    certificate = spikezip.verify(qann, snn, [batch], engine="spike")
    run = spikezip.simulate(snn, batch, "equilibrium", "spike")
    with executing(Recording()) as recorded, torch.no_grad():
        qann.eval()(**batch)
    different = sum(int((codes != run.tracers[site]).sum()) for site, codes in recorded.seen.items())
    assert certificate.mismatches == different
    assert certificate.codes == sum(codes.numel() for codes in recorded.seen.values())


def test_unsettled_runs_are_not_called_exact() -> None:
    qann, snn, batch = networks("ViTForImageClassification", torch.float64)
    certificate = spikezip.verify(qann, snn, [batch], max_steps=3)
    assert not certificate.exact
    assert certificate.unsettled == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_network_may_leave_the_grid(name: str, tmp_path: Path) -> None:
    """The same weights as floats: exact where sums have room, and another network on disk."""
    model = tiny_models.make(name).double()
    batch = {k: v.double() if v.is_floating_point() else v for k, v in tiny_models.inputs(model).items()}
    sites = {"*.LayerNorm": {"per_channel": True}} if name.startswith("Bert") else {}
    config = spikezip.QuantConfig(levels=16, sites=sites)
    qann = spikezip.calibrate(spikezip.quantize(model, config), [batch])
    exact, floats = spikezip.convert(qann), spikezip.convert(qann, float_weights=True)
    assert exact.quant_config.weight_bits == qann.quant_config.weight_bits == 8
    assert floats.quant_config.weight_bits is None
    for one, other in zip(exact.modules(), floats.modules(), strict=True):
        if isinstance(one, (SpikingLinear, SpikingInput)):
            assert torch.equal(one.weight, other.weight)
            assert (other.weight_bits, other.scale, other.codes.dtype) == (None, None, torch.float64)
    assert spikezip.verify(qann, floats, [batch], engine="spike").mismatches == 0
    spikezip.save(floats, tmp_path)
    again = spikezip.load(tmp_path)
    expected, found = (spikezip.simulate(snn, batch, 8, "spike") for snn in (floats, again))
    assert torch.equal(expected.logits_per_step, found.logits_per_step)
