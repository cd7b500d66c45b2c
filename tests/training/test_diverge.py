"""Values that are not finite: no step is taken, and the error names where they began."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.data import Pixels
from spikezip.training import DivergedError
from spikezip.training.finite import FiniteGuard
from spikezip.training.settings import TrainStage
from spikezip.training.trainer import StageTrainer, arguments_for

RELU = {"hidden_act": "relu", "num_hidden_layers": 2}


def trainer(model: Any, folder: Path, teacher: Any = None, **settings: Any) -> StageTrainer:
    stage = TrainStage.from_json(toys.stage(**settings))
    data = toys.images(train=64)
    arguments = arguments_for(stage, folder, 64, processes=1, seed=0, precision="float32", workers=0, cpu=True)
    pixels = Pixels(8, (0.5,) * 3, (0.5,) * 3)
    made = StageTrainer(model, stage, arguments, data.train, data.test, classes=4, pixels=pixels, teacher=teacher)
    return made


def spoil(model: Any, name: str, value: float) -> None:
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value


def diverges(model: Any, folder: Path, **settings: Any) -> str:
    """Train; returns the message. The weights must be those from before."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = trainer(model, folder, **settings)
    with pytest.raises(DivergedError, match="training diverged at step 1: ") as error:
        made.train()
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    return str(error.value)


def test_a_parameter_that_is_not_finite_is_named(tmp_path: Path) -> None:
    model = toys.vit(**RELU)
    spoil(model, "vit.layers.1.mlp.fc1.bias", float("inf"))
    message = diverges(model, tmp_path)
    assert "the parameter vit.layers.1.mlp.fc1.bias holds values that are not finite" in message
    assert "A lower learning rate" in message


def test_the_first_module_is_named(tmp_path: Path) -> None:
    """Finite weights, but two of them overflow."""
    model = toys.vit(**RELU)
    with torch.no_grad():
        model.vit.layers[1].mlp.fc1.weight.fill_(1e30)
        model.vit.layers[1].mlp.fc2.weight.fill_(1e30)
        model.vit.layers[1].mlp.fc1.bias.fill_(1e30)
    assert "the output of module 'vit.layers.1.mlp.fc2' is the first value that is not finite" in diverges(
        model, tmp_path
    )


def test_the_site_of_a_quantized_network_is_named(tmp_path: Path) -> None:
    """Sites clamp what reaches them; but two values near the largest float overflow in the residual sum.

    The norm between them sees the first value alone, in all channels: that has a mean and no variance (a sum in floats
    would overflow already).
    """
    qann = toys.run(toys.vit(**RELU), {"quantize": {"batches": 1}}, toys.images(train=64), tmp_path / "q").qann
    with torch.no_grad():
        for name in ("attention.o_proj", "mlp.fc2"):
            layer = qann.get_submodule(f"vit.layers.0.{name}")
            layer.bias.fill_(3e38)
            layer.site_scale.fill_(3e37)
    message = diverges(qann, tmp_path / "run")
    assert "what reaches site 'layers.1.layernorm_before' is the first value that is not finite" in message


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """√x at 0 is finite, its slope is not."""

    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (x - x.detach()).abs().sqrt()

    model = toys.vit(**RELU)
    model.vit.layers[0].mlp.activation_fn = Root()
    message = diverges(model, tmp_path)
    assert "the gradient at module 'vit.layers.0.mlp.fc1' is the first, on the way back, that is not finite" in message


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_gradients_whose_norm_overflows_are_not_clipped_to_nothing(tmp_path: Path, clip: float) -> None:
    model = toys.vit(**RELU)
    with torch.no_grad():
        model.classifier.weight.fill_(1e25)
        model.classifier.weight[0] = -1e25
    message = diverges(model, tmp_path, clip=clip)
    assert "every value is finite, but the gradients are so large, that of vit." in message


def test_tokens_that_are_flat_before_a_norm_are_named(tmp_path: Path) -> None:
    """All values of a token alike: their variance is 0, and each LayerNorm takes a gradient times a million."""
    model = toys.vit(hidden_act="relu", num_hidden_layers=8)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "embeddings" in name or (name.endswith("bias") and "classifier" not in name):
                value.zero_()
    message = diverges(model, tmp_path)
    assert "tokens reach module 'vit.layers.0.layernorm_before' with all their values alike" in message
    assert "gradients grow 1e+06-fold" in message


def test_a_loss_that_is_not_finite_is_told_from_a_network_that_is_not(tmp_path: Path) -> None:
    teacher = toys.vit(**RELU)
    spoil(teacher, "classifier.bias", float("nan"))
    message = diverges(toys.vit(**RELU), tmp_path, teacher=teacher, distill={})
    assert "the loss itself is not" in message


@pytest.mark.parametrize("step", [1, 2])
def test_the_part_of_a_batch_that_did_it_is_found(tmp_path: Path, step: int) -> None:
    """Gradients are accumulated over four parts; only the first of them has a picture that is not finite."""
    made = trainer(toys.vit(**RELU), tmp_path, batch_size=32, micro_batch_size=8)
    start = {name: value.clone() for name, value in made.model.state_dict().items()}
    parts: list[int] = []
    prepare = made._prepare_inputs

    def poisoned(inputs: dict[str, Any]) -> dict[str, Any]:
        prepared = prepare(inputs)
        if made.model.training and "poison" not in inputs:
            parts.append(0)
            if len(parts) == 4 * (step - 1) + 1:
                inputs["poison"] = True
        if inputs.get("poison"):
            prepared = {**prepared, "pixel_values": prepared["pixel_values"] * float("inf")}
        return {key: value for key, value in prepared.items() if key != "poison"}

    made._prepare_inputs = poisoned

    def run() -> None:
        made.train()
        ago = made.guard.diverged(finished=True) if made.guard is not None else 0  # as `train` asks after the last step
        if ago:
            made.stop_diverged(made.model, ago)

    with pytest.raises(DivergedError, match=r"at step \d: the output of module .* is the first value that is not"):
        run()
    moved = not all(torch.equal(value, start[name]) for name, value in made.model.state_dict().items())
    assert moved == (step == 2)  # the first step of two was taken, the bad one was not


def test_the_bad_step_is_not_taken() -> None:
    for optimizer in (torch.optim.AdamW, torch.optim.SGD):
        layer = torch.nn.Linear(3, 2)
        made = optimizer(layer.parameters(), lr=0.1, fused=True)
        guard = FiniteGuard(made)
        assert not guard.diverged()  # nothing was tried
        layer(torch.ones(1, 3)).sum().backward()
        made.step()
        assert not guard.diverged()
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        moments = [{k: v.clone() for k, v in s.items() if torch.is_tensor(v)} for s in made.state.values()]
        layer.weight.grad[0, 0] = float("nan")
        made.step()
        assert guard.diverged()
        assert not guard.diverged()  # told once
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
        for state, kept in zip(made.state.values(), moments, strict=True):
            assert all(torch.equal(state[key], value) for key, value in kept.items())
        layer.weight.grad[0, 0] = 1.0
        made.step()
        assert not guard.diverged()
        assert not torch.equal(layer.weight, before["weight"])


def test_a_run_stops_and_says_so(tmp_path: Path) -> None:
    """Also where the last step is the bad one: there is no step after it that could tell."""
    model = toys.vit(**RELU)
    spoil(model, "vit.layers.0.mlp.fc2.weight", float("nan"))
    stages = {"relu": toys.stage(batch_size=64)}  # one step
    with pytest.raises(DivergedError, match=r"the parameter vit\.layers\.0\.mlp\.fc2\.weight holds values"):
        toys.run(model, stages, toys.images(train=64), tmp_path / "run")
    assert not (tmp_path / "run" / "relu" / "done.json").exists()

    def no_number(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    read = [json.loads(line, parse_constant=no_number) for line in lines]
    assert any(line.get("loss") == "nan" for line in read)


def test_finite_runs_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {"relu": toys.stage(clip=0.5)}
    watched = toys.run(toys.vit(**RELU), stages, toys.images(train=64), tmp_path / "a")
    monkeypatch.setattr(FiniteGuard, "_look", lambda *args: None)
    bare = toys.run(toys.vit(**RELU), stages, toys.images(train=64), tmp_path / "b")
    assert toys.same_weights(watched.model, bare.model)
