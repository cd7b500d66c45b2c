"""Recipes: every error names its place, `--set` changes what it says, files read back equal."""

import json
from pathlib import Path
from typing import Any

import pytest

from spikezip.data.augmentation import Augmentation, RandAugment
from spikezip.errors import ConfigError
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.training.recipe import (
    Distillation,
    Expected,
    ModelSettings,
    QuantizeStage,
    Recipe,
    Stages,
    TrainStage,
    VerifyStage,
    load_recipe,
)

TEXT = """\
name: try
model: {path: some/model}
data:
  name: cifar10
stages:
  relu:
    epochs: 3
    batch_size: 32
    base_learning_rate: 1e-4
    augmentation:
      mixup: 0.8
      randaugment: {magnitude: 9}
    distill: {weight: 1}
  quantize:
    levels: 16
    weight_bits: none
    sites:
      "*.p": {levels: 64}
  convert: true
  verify:
    steps: [32, 64]
expected:
  - what: SNN
    accuracy: 90
    source: here
"""


def load(folder: Path, text: str = TEXT, *overrides: str) -> Recipe:
    file = folder / "try.yaml"
    file.write_text(text, encoding="utf-8")
    return load_recipe(file, overrides)


def test_every_setting_arrives(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    relu = recipe.stages.relu
    assert relu is not None
    assert recipe.stages.quantize is not None
    assert recipe.stages.verify is not None
    assert (relu.epochs, relu.batch_size, relu.base_learning_rate) == (3.0, 32, 1e-4)
    assert type(relu.epochs) is float
    assert relu.augmentation == Augmentation(mixup=0.8, randaugment=RandAugment(magnitude=9.0))
    assert relu.distill == Distillation(1.0, 2.0, "previous")
    assert recipe.stages.quantize.quant_config() == QuantConfig(16, None, sites={"*.p": SiteConfig(levels=64)})
    assert recipe.stages.finetune is None
    assert recipe.stages.qat is None
    assert recipe.stages.convert is not None
    assert recipe.stages.verify.steps == (32, 64)
    assert recipe.expected == (Expected(what="SNN", accuracy=90.0, source="here"),)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("epochs: 3", "epoch: 3", 7, "stages.relu.epoch: unknown key, did you mean 'epochs'"),
        ("levels: 64", "levles: 64", 18, "stages.quantize.sites.\"*.p\".levles: unknown key, did you mean 'levels'"),
        ("mixup: 0.8", "mixpu: 0.8", 11, "stages.relu.augmentation.mixpu: unknown key, did you mean 'mixup'"),
        ("stages:", "stage:", 5, "stage: unknown key, did you mean 'stages'"),
        ("name: try", "name: try\nqat: {}", 2, "qat: is a stage; it stands under `stages:`"),
        ("    batch_size: 32\n", "", 6, "stages.relu: missing key 'batch_size'"),
        ("name: try\n", "", 1, "missing key 'name'"),
        ("    source: here\n", "", 23, "expected.0: missing key 'source'"),
        ("epochs: 3", "epochs: three", 7, "stages.relu.epochs: expected a number, not the text 'three'"),
        ("epochs: 3", "epochs: true", 7, "stages.relu.epochs: expected a number, not true"),
        ("epochs: 3", "epochs: '3'", 7, "stages.relu.epochs: expected a number, not the text '3'"),
        ("epochs: 3", "epochs:", 7, "stages.relu.epochs: expected a number, not null"),
        ("batch_size: 32", "batch_size: 32.0", 8, "stages.relu.batch_size: expected a whole number, not 32.0"),
        ("batch_size: 32", "batch_size: true", 8, "stages.relu.batch_size: expected a whole number, not true"),
        ("name: try", "name: 10", 1, "name: expected text, not 10; put it in quotes"),
        ("name: try", "name: [a]", 1, "name: expected text, not a list"),
        ("convert: true", "convert: yes", 19, "stages.convert: expected true, false or a group of settings"),
        ("  relu:", "  finetune: true\n  relu:", 6, "stages.finetune: missing key 'epochs'"),
        ("steps: [32, 64]", "steps: [32, 6.4]", 21, "stages.verify.steps.1: expected a whole number, not 6.4"),
        ("steps: [32, 64]", "engine: fold", 21, "stages.verify.engine: expected one of folded, spike, event, auto"),
        ("weight_bits: none", "weight_bits: 4", 16, "stages.quantize.weight_bits: expected one of 8, 16, null, not 4"),
        ("epochs: 3", "epochs: 0", 7, "stages.relu.epochs: must be above 0, not 0"),
        ("epochs: 3", "epochs: .inf", 7, "stages.relu.epochs: expected a finite number, not inf"),
        ("epochs: 3", "epochs: 1e999", 7, "stages.relu.epochs: expected a finite number, not inf"),
        ("batch_size: 32", "batch_size: -1", 8, "stages.relu.batch_size: must be at least 1, not -1"),
        ("mixup: 0.8", "mixup: -0.1", 11, "stages.relu.augmentation.mixup: must be at least 0, not -0.1"),
        ("magnitude: 9", "magnitude: 11", 12, "stages.relu.augmentation.randaugment.magnitude: must be at least 0 and"),
        ("weight: 1", "temperature: 0", 13, "stages.relu.distill.temperature: must be above 0, not 0"),
        ("levels: 16", "levels: 7", 15, "stages.quantize.levels: levels=7: signed sites take an even number"),
        ("{levels: 64}", "{lo: -3}", 18, "stages.quantize.sites.\"*.p\": sites['*.p']: lo and hi are set together"),
        ("accuracy: 90", "accuracy: 900", 24, "expected.0.accuracy: must be at least 0 and at most 100, not 900"),
        ("  convert: true\n", "", 19, "stages.verify: needs the spiking network: add `convert: true`"),
        ("    base_learning_rate: 1e-4\n", "", 6, "stages.relu: give learning_rate or base_learning_rate"),
        ("base_l", "learning_rate: 1\n    base_l", 9, "stages.relu.learning_rate: give learning_rate or base"),
        ("epochs: 3", "epochs: 3\n    warmup_epochs: 4", 8, "stages.relu.warmup_epochs: 4 is more than epochs = 3"),
        ("size: 32", "size: 32\n    micro_batch_size: 5", 9, "stages.relu.micro_batch_size: 5 does not divide"),
        ("epochs: 3", "scale_learning_rate: 2\n    epochs: 3", 7, "stages.relu.scale_learning_rate: a float network"),
        ("path: some/model", "path: a, type: vit", 2, "model.type: 'vit' starts from scratch, but path = 'a'"),
        ("epochs: 3", "epochs: 3\n    epochs: 4", 8, "stages.relu.epochs: is set twice, first in line 7"),
        ("epochs: 3", "<<: {}", 7, "`<<` (merging) is not read here"),
        ("epochs: 3", "? [a]\n    : 3", 7, "a key of stages.relu is not a word"),
        ("name: try", "name: &a [*a]", 1, "name.0: contains itself"),
        ("epochs: 3", "epochs: !times 3", 7, "stages.relu.epochs: the tag !times has no meaning here"),
        ("epochs: 3", "epochs: !!int x", 7, "stages.relu.epochs: 'x' is not of the type int"),
        ("mixup: 0.8", "mixup:\t[0.8", 11, "not YAML: found character '\\t'"),
        ("weight: 1}", "weight: 1", 14, "not YAML: "),
    ],
)
def test_each_error_names_file_line_and_key(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(ConfigError) as error:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert str(error.value).startswith(f"{tmp_path / 'try.yaml'}, line {line}: {says}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label_smoothing", 1),
        ("layer_decay", 0),
        ("layer_decay", 1.1),
        ("drop_path", 1),
        ("dropout", -0.1),
        ("betas", [0.9, 1.0]),
        ("betas", [0.9]),
        ("epsilon", 0),
        ("clip", -1),
        ("weight_decay", -1),
        ("evaluate_every", -1),
        ("schedule", "step"),
        ("distill", {"weight": -1}),
        ("augmentation", Augmentation(erase=1.5)),
        ("augmentation", Augmentation(drop=1.0)),
        ("augmentation", Augmentation(randaugment=RandAugment(ops=0))),
    ],
)
def test_ranges_hold_in_python_too(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}(\.[.a-z]+)?: "):
        TrainStage(epochs=1, batch_size=8, learning_rate=1e-3, **{key: value})


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "- a\n", "just words\n"):
        with pytest.raises(ConfigError, match=r"try\.yaml.*: expected settings as `key: value`"):
            load(tmp_path, text)
    with pytest.raises(ConfigError, match=r"try\.yaml, line 2: not YAML: .*another document"):
        load(tmp_path, "name: a\n---\nname: b\n")
    with pytest.raises(ConfigError, match=r"try\.yaml: not YAML: unacceptable character"):
        load(tmp_path, "name: \x01\n")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not UTF-8 text \(byte 6\)"):
        load_recipe(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path)


def test_overrides(tmp_path: Path) -> None:
    recipe = load(
        tmp_path,
        TEXT,
        "model=a/b",
        "data=/somewhere/else",
        "output=runs/x",
        "relu.epochs=1e1",
        "stages.relu.batch_size=64",
        "relu.augmentation.randaugment=null",
        "model.config.hidden_dropout_prob=0.1",
        "qat={epochs: 2, batch_size: 8, learning_rate: 3e-5}",
        "qat.epochs=5",
        'quantize.sites."*.p".levels=32',
        "quantize.sites.'*.v'={signed: true}",
        "quantize.weight_bits=8",
        "verify=null",
        "seed=1",
        "seed=2",
    )
    relu, qat, quantize = recipe.stages.relu, recipe.stages.qat, recipe.stages.quantize
    assert relu is not None
    assert qat is not None
    assert quantize is not None
    assert recipe.model == ModelSettings(path="a/b", config={"hidden_dropout_prob": 0.1})
    assert (recipe.data.name, recipe.data.source, recipe.output) == ("cifar10", "/somewhere/else", "runs/x")
    assert (relu.epochs, relu.batch_size, relu.augmentation.randaugment) == (10.0, 64, None)
    assert (qat.epochs, qat.batch_size, qat.learning_rate) == (5.0, 8, 3e-5)
    assert quantize.sites == {"*.p": SiteConfig(levels=32), "*.v": SiteConfig(signed=True)}
    assert quantize.weight_bits == 8
    assert recipe.stages.verify is None
    assert recipe.seed == 2  # the later one wins


def test_stages_go_off_and_on(tmp_path: Path) -> None:
    for off in ("relu=null", "relu=false", "relu=none", "relu="):
        assert load(tmp_path, TEXT, off).stages.relu is None
    assert load(tmp_path, TEXT, "verify=true").stages.verify == VerifyStage()
    assert load(tmp_path, TEXT, "quantize=true").stages.quantize == QuantizeStage()
    again = load(tmp_path, TEXT, "relu=null", "relu={epochs: 1, batch_size: 2, learning_rate: 1}").stages.relu
    assert again == TrainStage(epochs=1, batch_size=2, learning_rate=1)
    with pytest.raises(ConfigError, match="stages: every stage is off"):
        load(tmp_path, TEXT, "relu=null", "quantize=null", "convert=null", "verify=null")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("qat.epochs=3", "stages.qat: missing key 'batch_size'"),
        ("relu.epoch=3", "stages.relu.epoch: unknown key, did you mean 'epochs'"),
        ("rleu.epochs=3", "rleu: unknown key."),
        ("relu.epochs=-1", "stages.relu.epochs: must be above 0, not -1"),
        ("relu.warmup_epochs=9", "stages.relu.warmup_epochs: 9 is more than epochs = 3"),
        ("relu={epochs: 1, batch_size: x}", "stages.relu.batch_size: expected a whole number"),
        ("relu=[1", "not YAML: "),
        ("relu={epochs: 1, epochs: 2}", "epochs: is set twice"),
        ("name.first=a", "name is a single value, so name.first cannot be set"),
        ("data=5", "data.source: expected text, not 5; put it in quotes"),
        ("relu", "expected key=value"),
        ("=3", "expected key=value"),
        ("relu..epochs=3", "expected key=value"),
        ('relu."epochs=3', "expected key=value"),
    ],
)
def test_an_error_of_an_override_names_it(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, TEXT, override)
    assert str(error.value).startswith(f"--set {override}: {says}")


def test_an_error_elsewhere_still_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 8: stages\.relu\.batch_size"):
        load(tmp_path, TEXT.replace("batch_size: 32", "batch_size: x"), "relu.epochs=3")


def test_aliases_are_values_of_their_own(tmp_path: Path) -> None:
    text = TEXT.replace("augmentation:", "augmentation: &a")
    text += "# end\n"
    text = text.replace(
        "  convert:", "  qat: {epochs: 1, batch_size: 1, learning_rate: 1, augmentation: *a}\n  convert:"
    )
    recipe = load(tmp_path, text, "qat.augmentation.mixup=0")
    assert recipe.stages.qat is not None
    assert recipe.stages.relu is not None
    assert (recipe.stages.qat.augmentation.mixup, recipe.stages.relu.augmentation.mixup) == (0.0, 0.8)


AWKWARD = Recipe(
    name="none",
    note="yes: 'a' \"b\"\n  é – 1e-4 #",
    output="007",
    model=ModelSettings(
        path="1e-4", config={"a": "null", "b": [1, 2.5, None, True, "true", "~", ""], "c": {"0": "1_000"}}
    ),
    seed=2**32 - 1,
    precision="bf16",
    stages=Stages(
        finetune=TrainStage(epochs=1 / 3, batch_size=7, learning_rate=1e-30, dropout=0.1, keep="best", compile=True),
        relu=TrainStage(
            epochs=1,
            batch_size=12,
            micro_batch_size=4,
            base_learning_rate=1e-4,
            augmentation=Augmentation(randaugment=RandAugment(3, 1.5, 0.25), flip=True),
            distill=Distillation(0.5, 3.0, "none"),
        ),
        quantize=QuantizeStage(levels=8, embedding_bits=8, sites={"*.p": SiteConfig(lo=-1, hi=2)}),
        qat=TrainStage(epochs=2, batch_size=3, learning_rate=1e-3, scale_learning_rate=0.1),
        convert=Stages.from_json({"convert": True}).convert,
        verify=VerifyStage(steps=(1, 2), samples=5, engine="spike"),
    ),
    expected=(Expected(what="SNN", accuracy=12.5, source="a: b", steps=3, levels=4),),
)


def test_round_trips(tmp_path: Path) -> None:
    for recipe in (AWKWARD, load(tmp_path), Recipe(name="short", stages=Stages(quantize=QuantizeStage()))):
        assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
        assert load(tmp_path, recipe.to_yaml()) == recipe


def test_python_values_are_converted_and_checked() -> None:
    model = ModelSettings.from_json({"config": {"id2label": {0: "a"}, "sizes": (1, 2)}})
    assert model.config == {"id2label": {"0": "a"}, "sizes": [1, 2]}
    stage = TrainStage.from_json({"epochs": 1, "batch_size": 8, "learning_rate": 1, "betas": (0, 0.5)})
    assert stage.betas == (0.0, 0.5)
    with pytest.raises(ConfigError, match=r"config\.a: expected data as JSON holds it"):
        ModelSettings(config={"a": object()})
    with pytest.raises(ConfigError, match=r"config\.a\.0: expected a finite number"):
        ModelSettings(config={"a": [float("nan")]})


def test_which_learning_rate_is_the_highest() -> None:
    assert TrainStage(epochs=1, batch_size=512, learning_rate=1e-3).peak_learning_rate == 1e-3
    assert TrainStage(epochs=1, batch_size=512, base_learning_rate=1e-3).peak_learning_rate == 2e-3


def test_a_model_must_be_known_when_training_starts() -> None:
    ModelSettings(path="a").check_known()
    ModelSettings(type="vit").check_known()
    with pytest.raises(ConfigError, match="name one with --set model=FOLDER"):
        ModelSettings().check_known()
