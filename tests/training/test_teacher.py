"""The teacher: the loss by hand, and that it matters."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.errors import ConfigError
from spikezip.training import train
from spikezip.training.losses import distillation_loss, label_loss
from spikezip.training.settings import TrainStage
from spikezip.training.trainer import StageTrainer, arguments_for


def by_hand(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> float:
    """T² · Σ p·(log p − log q) per sample, then the mean."""
    p, q = (torch.exp(x / temperature) for x in (teacher.double(), student.double()))
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    return temperature**2 * float((p * (p / q).log()).sum(1).mean())


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_by_hand(temperature: float) -> None:
    student, teacher = torch.randn(7, 5), torch.randn(7, 5)
    found = distillation_loss(student, teacher, temperature).item()
    assert found == pytest.approx(by_hand(student, teacher, temperature), rel=1e-5)  # float32 against float64
    assert found != pytest.approx(by_hand(teacher, student, temperature), rel=1e-3)  # which is which matters


def test_labels_by_hand() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    logs = torch.log_softmax(logits.double(), 1)
    own = -logs[range(6), labels].mean().item()
    every = -logs.mean().item()
    assert label_loss(logits, labels).item() == pytest.approx(own, rel=1e-5)  # float32 against float64
    assert label_loss(logits, labels, 0.1).item() == pytest.approx(0.9 * own + 0.1 * every, rel=1e-5)
    shares = 0.7 * torch.eye(4)[labels] + 0.3 * torch.eye(4)[labels.flip(0)]
    mixed = -(shares * logs).sum(1).mean().item()
    assert label_loss(logits, shares).item() == pytest.approx(mixed, rel=1e-5)


def trainer(folder: Path, teacher: Any, **settings: Any) -> StageTrainer:
    stage = TrainStage.from_json(toys.stage(**settings))
    data = toys.images(train=32)
    arguments = arguments_for(stage, folder, 32, processes=1, seed=0, precision="float32", workers=0, cpu=True)
    return StageTrainer(toys.vit(), stage, arguments, data.train, data.test, classes=4, teacher=teacher)


def test_the_loss_of_a_step_by_hand(tmp_path: Path) -> None:
    teacher = toys.vit(seed=9)
    made = trainer(tmp_path, teacher, distill={"weight": 0.7, "temperature": 2.0}, label_smoothing=0.1)
    batch = {"pixel_values": torch.randn(8, 3, 8, 8), "labels": torch.arange(8) % 4}
    made.model.train()
    with torch.no_grad():
        student, target = (m(pixel_values=batch["pixel_values"]).logits for m in (made.model, teacher))
    labels = label_loss(student, batch["labels"], 0.1).item()
    loss = made.compute_loss(made.model, batch)
    assert loss.item() == pytest.approx(labels + 0.7 * by_hand(student, target, 2.0), rel=1e-5)  # float32 and float64
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert not teacher.training

    made.model.eval()
    plain = made.compute_loss(made.model, batch, return_outputs=True)
    assert torch.equal(plain[0], label_loss(plain[1]["logits"], batch["labels"]))  # evaluation asks no teacher
    assert "labels" in batch


def test_with_a_teacher_the_student_agrees_with_it(tmp_path: Path) -> None:
    """Labels that are half noise, and a teacher that learned from clean ones."""
    good = toys.run(toys.vit(seed=1), {"relu": toys.stage(epochs=6, learning_rate=2e-2)}, toys.images(), tmp_path / "t")
    assert good.metrics["relu"]["accuracy"] > 0.9
    noisy = toys.images(noise=0.6)
    pixels = noisy.test.__getitems__(range(96))["pixel_values"].float() / 127.5 - 1
    agreement = {}
    for name, distill in (("alone", None), ("taught", {"weight": 3.0})):
        stages = {"quantize": {"levels": 8, "batches": 1}, "qat": toys.stage(epochs=3, distill=distill)}
        made = toys.run(good.model, stages, noisy, tmp_path / name, tried=False)
        with torch.no_grad():
            ours, theirs = (m.eval()(pixel_values=pixels).logits for m in (made.qann, good.model))
        agreement[name] = float((ours.argmax(1) == theirs.argmax(1)).float().mean())
        agreement[f"{name} KL"] = by_hand(ours, theirs, 1.0)
    assert agreement["taught"] > 0.9
    assert agreement["taught"] >= agreement["alone"]
    assert agreement["taught KL"] < agreement["alone KL"] / 2


def test_a_teacher_by_name(tmp_path: Path) -> None:
    toys.vit(seed=3).save_pretrained(tmp_path / "teacher")
    stages = {"relu": toys.stage(distill={"teacher": str(tmp_path / "teacher")})}
    data = toys.images(train=64)
    taught = toys.run(toys.vit(), stages, data, tmp_path / "run")
    alone = toys.run(toys.vit(), {"relu": toys.stage()}, data, tmp_path / "alone")
    assert not toys.same_weights(taught.model, alone.model)
    toys.vit(num_labels=7).save_pretrained(tmp_path / "other")
    stages = {"relu": toys.stage(distill={"teacher": str(tmp_path / "other")})}
    with pytest.raises(ConfigError, match=r"relu\.distill\.teacher: .*other has no head for these classes"):
        toys.run(toys.vit(), stages, data, tmp_path / "no")


def test_a_network_that_cannot_teach_is_refused(tmp_path: Path) -> None:
    data = toys.images(train=64)
    scratch = {"type": "vit", "config": {**toys.TINY, "image_size": 8, "patch_size": 4}}
    recipe: dict[str, Any] = {"name": "toy", "model": scratch, "stages": {"relu": toys.stage(distill={})}}
    with pytest.raises(ConfigError, match=r"relu\.distill: the network before this stage cannot teach"):
        train(None, recipe, data=data, output=tmp_path / "scratch", cpu=True)
    stages = {"quantize": {"batches": 1}}
    qann = toys.run(toys.vit(hidden_act="relu"), stages, data, tmp_path / "qann").qann
    with pytest.raises(ConfigError, match=r"qat\.distill: the network before this stage cannot teach"):
        toys.run(qann, {"qat": toys.stage(distill={})}, data, tmp_path / "no")


def test_the_network_of_an_earlier_stage_teaches(tmp_path: Path) -> None:
    """The same as naming its folder; another teacher than the network just before."""
    stages = {
        "finetune": toys.stage(epochs=2),
        "relu": toys.stage(epochs=1),
        "quantize": {"levels": 8, "batches": 1},
        "qat": toys.stage(epochs=1, distill={"teacher": "finetune", "weight": 3.0}),
    }
    data = toys.images(train=96, test=32)
    named = toys.run(toys.vit(), stages, data, tmp_path / "named")
    folder = str(tmp_path / "named" / "finetune" / "model")
    stages["qat"] = toys.stage(epochs=1, distill={"teacher": folder, "weight": 3.0})
    by_folder = toys.run(toys.vit(), stages, data, tmp_path / "folder", tried=False)
    stages["qat"] = toys.stage(epochs=1, distill={"weight": 3.0})
    by_previous = toys.run(toys.vit(), stages, data, tmp_path / "previous", tried=False)
    weights, same, other = (made.model.state_dict() for made in (named, by_folder, by_previous))
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert not all(torch.equal(weights[name], other[name]) for name in weights)


@pytest.mark.parametrize("stage", ["finetune", "relu"])
def test_a_stage_that_is_not_there_cannot_teach(stage: str, tmp_path: Path) -> None:
    stages = {stage: toys.stage(epochs=1, distill={"teacher": stage})}
    with pytest.raises(ConfigError, match=f"no stage {stage} comes before {stage}"):
        toys.run(toys.vit(), stages, toys.images(), tmp_path / "a")
    stages = {"quantize": {"levels": 8}, "qat": toys.stage(epochs=1, distill={"teacher": stage})}
    with pytest.raises(ConfigError, match=f"no stage {stage} comes before qat"):
        toys.run(toys.vit(), stages, toys.images(), tmp_path / "b")
