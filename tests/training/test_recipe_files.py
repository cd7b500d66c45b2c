"""The shipped recipes: each loads, the paper's rows are all there, the tables of the documentation are up to date."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from spikezip.data import DATASETS, Data, _opener, names
from spikezip.data.images import Images
from spikezip.training.describe import describe, recipes_table, settings_table, with_tables
from spikezip.training.folder import flat
from spikezip.training.models import make_model
from spikezip.training.recipe import Recipe, TrainStage, load_recipe
from spikezip.training.work import MODEL

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes").glob("*.yaml"))
TEACHERS = sorted((ROOT / "recipes" / "teachers").glob("*.yaml"))

# The paper's tables 4, 5, 6 and A1: levels, T, then the accuracies of the float network with ReLU, the QANN, the SNN.
ROWS: dict[str, tuple[int, int, float | None, float, float]] = {
    "imagenet-vit-s": (32, 64, 82.34, 81.59, 81.45),
    "imagenet-vit-b": (32, 64, 83.75, 82.83, 82.71),
    "imagenet-vit-l": (32, 64, 85.41, 83.86, 83.82),
    "cifar10-vit-s-8levels": (8, 16, 99.2, 98.0, 97.7),
    "cifar10-vit-s-16levels": (16, 32, 99.2, 98.7, 98.7),
    "cifar100-vit-s-8levels": (8, 16, 91.9, 87.2, 87.3),
    "cifar100-vit-s-16levels": (16, 32, 91.9, 89.5, 89.7),
    "cifar10-dvs-vit-s-16levels": (16, 32, 90.4, 88.4, 87.6),
    "cifar10-dvs-vit-s-32levels": (32, 64, 90.4, 90.2, 90.5),
    "imagenet-swin-t": (32, 64, None, 80.70, 80.74),
    "cifar10-swin-t": (16, 32, None, 98.38, 98.45),
    "cifar100-swin-t": (16, 32, None, 87.94, 87.91),
    "cifar10-dvs-swin-t": (32, 64, None, 90.50, 90.40),
    "mr-roberta": (32, 64, 87.16, 85.76, 86.13),
    "sst2-roberta": (32, 64, 94.15, 92.81, 92.81),
    "subj-roberta": (32, 64, 96.30, 95.55, 95.55),
    "sst5-roberta": (32, 64, 54.57, 52.71, 52.71),
    "chnsenti-roberta": (32, 64, 88.22, 88.36, 86.77),
    "waimai-roberta": (32, 64, 92.05, 91.88, 91.88),
    "mr-roberta-large": (64, 128, 91.33, 88.77, 89.28),
    "sst2-roberta-large": (64, 128, 96.21, 93.24, 93.79),
    "subj-roberta-large": (64, 128, 97.25, 96.70, 96.70),
    "sst5-roberta-large": (64, 128, 57.42, 56.11, 56.51),
    "chnsenti-roberta-large": (64, 128, 86.90, 87.03, 87.16),
    "waimai-roberta-large": (64, 128, 92.91, 91.80, 91.29),
}
SMALL_TEXT = {
    "mr-granite": ("mr", "sst2-granite"),
    "subj-granite": ("subj", "sst2-granite"),
    "sst5-granite": ("sst5", "sst2-granite"),
    "mr-minilm": ("mr", "sst2-minilm"),
    "subj-minilm": ("subj", "sst2-minilm"),
    "sst5-minilm": ("sst5", "sst2-minilm"),
    "chnsenti-m3e": ("chnsenticorp", "sst2-minilm"),
    "waimai-m3e": ("waimai", "sst2-minilm"),
}
LEVELS = {
    f"{base}-{levels}levels": (base, levels)
    for base in ("cifar10-vit-scratch", "cifar10-swin-scratch")
    for levels in (8, 32)
}
# Parameters, in millions: what their headers and the documentation say.
SCRATCH = {
    "cifar10-vit-tiny-scratch": 1.3,
    "cifar10-vit-scratch": 5.3,
    "cifar10-vit-fine-scratch": 5.3,
    "cifar10-vit-taught-scratch": 11.9,
    "cifar10-vit-gentle-scratch": 5.3,
    "cifar10-vit-small-scratch": 11.9,
    "cifar10-swin-scratch": 5.9,
}
OTHERS = {"sst2-minilm", "sst2-granite", "events-vit-scratch", "fashion-mnist-vit", "cifar10-vit-taught-longer"}
OWN = SMALL_TEXT.keys() | LEVELS.keys() | SCRATCH.keys() | OTHERS

# Tables A3 to A12: epochs, batch per GPU and in all, base learning rate, weight decay, layer decay, drop path.
RELU = {
    "imagenet-vit-s": (100, 64, 256, 1e-4, 0.05, 0.65, 0.1),
    "imagenet-vit-b": (100, 96, 768, 1.66e-4, 0.05, 0.65, 0.1),
    "imagenet-vit-l": (50, 24, 192, 1.67e-3, 0.05, 0.75, 0.2),
    "cifar10-vit-s": (100, 192, 1536, 1e-4, 0.05, 0.65, 0.1),
    "cifar100-vit-s": (100, 192, 1536, 1e-4, 0.05, 0.65, 0.1),
    "cifar10-dvs-vit-s": (300, 192, 768, 2e-4, 0.05, 0.65, 0.1),
}
QAT = {
    "imagenet-vit-s": (100, 64, 256, 1.5e-4, 0.05, 0.65, 0.1),
    "imagenet-vit-b": (50, 96, 576, 1.5e-4, 0.001, 0.65, 0.05),
    "imagenet-vit-l": (50, 20, 160, 1.6e-3, 0.0005, 0.75, 0.05),
    "cifar10-vit-s": (300, 128, 1024, 1.5e-4, 0.05, 0.65, 0.1),
    "cifar100-vit-s": (300, 128, 1024, 1.5e-4, 0.05, 0.65, 0.1),
    "cifar10-dvs-vit-s": (300, 92, 368, 2.25e-4, 0.05, 0.65, 0.1),
}


def test_these_are_the_files() -> None:
    assert {path.stem for path in FILES} == set(ROWS) | OWN


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_loads(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.stages.relu
    assert recipe.stages.quantize
    assert recipe.stages.qat
    assert recipe.stages.verify
    assert recipe.stages.quantize.weight_bits == 8
    assert recipe.stages.qat.distill is not None
    assert recipe.data.name in names()
    assert f"spikezip train recipes/{path.name} --set" in path.read_text(encoding="utf-8")
    (tmp_path / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dataset_takes_the_options(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.data.name in DATASETS
    assert set(recipe.data.options) <= set(inspect.signature(_opener(recipe.data.name)).parameters)


@pytest.mark.parametrize("name", ROWS)
def test_the_papers_rows(name: str) -> None:
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    levels, steps, relu, qann, snn = ROWS[name]
    assert recipe.stages.quantize is not None
    assert recipe.stages.verify is not None
    assert recipe.stages.quantize.levels == levels
    assert recipe.stages.verify.steps == (steps,)
    assert {e.what: e.accuracy for e in recipe.expected} == {
        what: value for what, value in (("ReLU", relu), ("QANN", qann), ("SNN", snn)) if value is not None
    }
    assert [(e.levels, e.steps) for e in recipe.expected if e.what == "SNN"] == [(levels, steps)]
    assert [(e.levels, e.steps) for e in recipe.expected if e.what == "QANN"] == [(levels, None)]


@pytest.mark.parametrize("name", [name for name in ROWS if "-vit-" in name])
def test_the_papers_training_settings(name: str) -> None:
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    row = name.removesuffix("-8levels").removesuffix("-16levels").removesuffix("-32levels")
    for stage, settings in ((recipe.stages.relu, RELU[row]), (recipe.stages.qat, QAT[row])):
        assert stage is not None
        assert settings == (
            stage.epochs,
            stage.micro_batch_size,
            stage.batch_size,
            stage.base_learning_rate,
            stage.weight_decay,
            stage.layer_decay,
            stage.drop_path,
        )
        assert (stage.betas, stage.warmup_epochs, stage.schedule) == ((0.9, 0.99), 5.0, "cosine")
        assert (stage.label_smoothing, stage.augmentation.mixup, stage.augmentation.cutmix) == (0.1, 0.8, 1.0)
        randaugment = stage.augmentation.randaugment
        if "dvs" in name:  # frames have too many channels for it
            assert randaugment is None
        else:
            assert randaugment is not None
            assert (randaugment.magnitude, randaugment.std) == (9.0, 0.5)
    assert recipe.stages.qat is not None
    assert recipe.stages.qat.distill is not None
    assert (recipe.stages.qat.distill.weight, recipe.stages.qat.distill.temperature) == (1.0, 2.0)


def ten_images() -> Data:
    """As many as there are classes."""
    split = Images(torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.arange(10))
    return Data("cifar10", "images", tuple("0123456789"), split, split, split, note="")


def differing(name: str, other: str) -> set[str]:
    """The settings in which two recipes differ."""
    one, two = (flat(load_recipe(ROOT / "recipes" / f"{stem}.yaml").to_json()) for stem in (name, other))
    return {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)} - {"name", "note", "expected"}


@pytest.mark.parametrize("name", SMALL_TEXT)
def test_small_sets_are_trained_as_the_large_one(name: str) -> None:
    """As their headers say: twice the epochs, a longer warm-up, bfloat16, and nothing else."""
    data, like = SMALL_TEXT[name]
    recipe, known = (load_recipe(ROOT / "recipes" / f"{stem}.yaml") for stem in (name, like))
    assert recipe.data.name == data
    stages = {f"stages.{stage}.{key}" for stage in ("finetune", "relu", "qat") for key in ("epochs", "warmup_epochs")}
    assert differing(name, like) <= stages | {"data.name", "data.max_length", "stages.verify.steps", "precision"}
    assert recipe.precision == "bf16"
    for stage in ("finetune", "relu", "qat"):
        assert getattr(recipe.stages, stage).epochs == 2 * getattr(known.stages, stage).epochs


@pytest.mark.parametrize("name", LEVELS)
def test_recipes_of_other_levels_differ_in_nothing_else(name: str) -> None:
    """Else the float network of one would not be that of the other."""
    base, levels = LEVELS[name]
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    assert recipe.stages.quantize is not None
    assert recipe.stages.quantize.levels == levels
    assert differing(name, base) == {"stages.quantize.levels"}


@pytest.mark.parametrize("name", LEVELS)
def test_they_can_start_from_the_float_network_of_another_run(name: str) -> None:
    """With the settings that their headers name."""
    path = ROOT / "recipes" / f"{name}.yaml"
    command = path.read_text(encoding="utf-8").split("#\n")[-1].split("\n\n")[0]
    settings = [word for word in command.split() if "=" in word]
    recipe = load_recipe(path, settings)
    assert (recipe.model.path, recipe.model.type, recipe.model.initialization) == ("RUN/relu/model", None, None)
    assert recipe.stages.relu is None
    assert recipe.stages.qat is not None


GENTLER = {
    f"stages.{stage}.augmentation.{key}" for stage in ("relu", "qat") for key in ("mixed", "randaugment.magnitude")
}


def test_the_gentle_network_differs_in_its_augmentation() -> None:
    keys = differing("cifar10-vit-gentle-scratch", "cifar10-vit-scratch")
    assert keys == GENTLER | {"stages.relu.compile"}


def test_the_taught_network_differs_in_teacher_augmentation_and_epochs() -> None:
    taught = load_recipe(ROOT / "recipes" / "cifar10-vit-taught-scratch.yaml")
    assert taught.stages.relu is not None
    assert taught.stages.relu.distill is not None
    keys = differing("cifar10-vit-taught-scratch", "cifar10-vit-small-scratch")
    assert {key for key in keys if not key.startswith("stages.relu.distill")} == GENTLER | {"stages.relu.epochs"}
    run, stage, model = Path(taught.stages.relu.distill.teacher).parts[-3:]
    teacher = load_recipe(ROOT / "recipes" / "teachers" / f"{run}.yaml")
    assert getattr(teacher.stages, stage) is not None
    assert model == MODEL


def test_what_goes_on_with_it_trains_the_same_network_otherwise() -> None:
    keys = differing("cifar10-vit-taught-longer", "cifar10-vit-taught-scratch")
    float_training = ("epochs", "learning_rate", "warmup_epochs", "evaluate_every", "distill.weight")
    assert keys == {
        *("model.type", "model.initialization"),
        *(f"stages.relu.{key}" for key in float_training),
        *("stages.qat.epochs", "stages.qat.evaluate_every"),
    }


@pytest.mark.parametrize("path", TEACHERS, ids=lambda path: path.stem)
def test_teachers_are_trained_with_floats_alone(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert [
        name for name in ("finetune", "relu", "quantize", "qat", "convert", "verify") if getattr(recipe.stages, name)
    ] == ["finetune"]
    parameters = sum(p.numel() for p in make_model(recipe.model, ten_images()).parameters()) / 1e6
    text = path.read_text(encoding="utf-8")
    assert f"{parameters:.1f} M parameters" in text
    assert f"spikezip train recipes/teachers/{path.name} --set" in text


@pytest.mark.parametrize("name", SCRATCH)
def test_networks_from_scratch_have_the_size_that_is_said(name: str) -> None:
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    model = make_model(recipe.model, ten_images())
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == SCRATCH[name]
    assert model.config.hidden_act == "relu"
    assert f"{SCRATCH[name]} M" in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_every_setting_is_described() -> None:
    rows = {row.key: row for row in describe()}
    assert {f.name for f in fields(Recipe)} <= set(rows)
    assert {f"stages.finetune.{f.name}" for f in fields(TrainStage)} <= set(rows)
    assert "stages.quantize.sites.PATTERN.levels" in rows
    assert "expected[].accuracy" in rows
    assert all(row.meaning and row.type for row in rows.values())
    assert rows["stages.finetune.betas"].default == "[0.9, 0.99]"
    assert rows["stages.finetune.epochs"].default == "required"
    assert rows["stages.qat"].type == "as `stages.finetune`"


def test_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    remedy = "run python -m spikezip.training.describe docs/recipes.md recipes"
    assert settings_table() in page, remedy
    assert recipes_table(ROOT / "recipes") in page, remedy
    assert with_tables(page, ROOT / "recipes") == page, remedy


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (tmp_path / "my.yaml").write_text(page.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    assert load_recipe(tmp_path / "my.yaml").stages.verify is not None
