"""The shipped recipes on small networks and small data of the real forms; and what they brought up.

Every recipe is brought as far as its first step of training: read, data opened, model made, every stage checked. Of the
recipes that differ in numbers and names only, one is carried out to its end.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import published
import pytest
import tiny_models
import torch
import toys
from typer.testing import CliRunner

from spikezip.cli.app import app
from spikezip.data import open_data
from spikezip.data.reduction import add_reduction
from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.models.networks import quantize
from spikezip.training import Trained, compiled, train
from spikezip.training.depth import blocks, depths, dropping_paths
from spikezip.training.folder import flat
from spikezip.training.models import make_model
from spikezip.training.recipe import STAGES, ModelSettings, Recipe, load_recipe
from spikezip.training.trainer import arguments_for

FILES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
BY_NAME = {file.stem: file for file in FILES}
KINDS_OF_DATA = {"events": ("cifar10-dvs", "events"), "pictures": ("imagenet",)}  # pictures are cut when they are read
ARGUMENTS: dict[str, Any] = {"processes": 1, "seed": 0, "precision": "float32", "workers": 0, "cpu": True}
FREE = ("note", "expected", "output", "seed")  # say nothing about how a recipe runs


def form(value: Any, key: str = "") -> Any:
    """A setting without its numbers: but 0 and 1 often switch something off, and bits and wide codes matter."""
    if isinstance(value, dict):
        return tuple((name, form(value[name], name)) for name in sorted(value))
    if isinstance(value, list):
        return tuple(sorted({form(each, key) for each in value}, key=repr))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in (0, 1) or key.endswith("_bits"):
        return value
    return "wide" if key == "levels" and value > 128 else "number"


def kind(file: Path) -> Any:
    """What makes a difference to how a recipe runs, computed from it: equal for recipes that run the same code."""
    shipped = load_recipe(file)
    small = load_recipe(file, [f"{key}={json.dumps(value)}" for key, value in published.sizes(shipped).items()])
    settings = {key: value for key, value in small.to_json().items() if key not in (*FREE, "name")}
    model, data = settings["model"], settings["data"]
    if model["type"] is None:
        model["path"] = network(shipped).__name__
    name = data.pop("name")
    data["kind"] = next((of for of, names in KINDS_OF_DATA.items() if name in names), "text or images")
    return form(settings)


def network(shipped: Recipe) -> Callable[[Path], None]:
    """The function that makes the network that a recipe starts from."""
    return published.NETWORKS[shipped.model.path or shipped.name]


CARRIED_OUT = list({kind(file): file for file in reversed(FILES)}.values())[::-1]  # the first of each kind


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


# Where a tensor is no leaf, torch's tracing hears a warning and hides it; as an error it would not get that far.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKEZIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # compilers take half a minute


def overridden(file: Path, root: Path, output: Path) -> dict[str, Any]:
    """Sizes, and where data, network and results lie: nothing else may differ from the file."""
    shipped = load_recipe(file)
    assert shipped.data.name is not None
    changed = published.sizes(shipped) | {
        "data.source": str(published.made(root / "data", published.DATA[shipped.data.name])),
        "output": str(output),
    }
    if shipped.model.type is None:
        changed["model.path"] = str(published.made(root / "networks", network(shipped)))
    relu = shipped.stages.relu
    if relu is not None and relu.distill is not None and relu.distill.teacher.startswith("runs/"):
        _, name, *inside = Path(relu.distill.teacher).parts
        changed["stages.relu.distill.teacher"] = str(taught_by(name, root).joinpath(*inside))
    return changed


def taught_by(name: str, root: Path) -> Path:
    """The run of a teacher's recipe, made once."""
    folder = root / "teachers" / name
    if not folder.exists():
        file = Path(__file__).parents[2] / "recipes" / "teachers" / f"{name}.yaml"
        run(file, overridden(file, root, folder))
    return folder


def run(file: Path, changed: dict[str, Any], *more: str) -> Trained:
    return train(None, load_recipe(file, [*(f"{key}={value}" for key, value in changed.items()), *more]), cpu=True)


def test_recipes_of_one_kind_differ_in_numbers() -> None:
    """Levels, rates and datasets make no other kind; an option, a stage, another network or form of data does."""
    kinds = {name: kind(file) for name, file in BY_NAME.items()}
    assert kinds["cifar10-vit-s-8levels"] == kinds["cifar10-vit-s-16levels"] == kinds["cifar100-vit-s-8levels"]
    assert kinds["mr-roberta"] == kinds["sst5-roberta"]
    assert form({"levels": 256, "bits": 1}) != form({"levels": 64, "bits": 1}) == form({"levels": 32, "bits": 1})
    for name, other in (
        ("cifar10-vit-scratch", "cifar10-vit-gentle-scratch"),  # an augmentation, compiled blocks
        ("mr-roberta", "mr-roberta-large"),  # batches in parts
        ("mr-roberta", "mr-granite"),  # a stage more
        ("cifar10-vit-s-16levels", "cifar10-dvs-vit-s-16levels"),
        ("cifar10-vit-s-16levels", "cifar10-swin-t"),
    ):
        assert kinds[name] != kinds[other]
    assert {kind(file) for file in CARRIED_OUT} == set(kinds.values())


def assert_as_shipped(file: Path, changed: dict[str, Any], folder: Path) -> None:
    """What a run wrote down of its recipe differs from the file in what was overridden, and in nothing else."""
    before, after = (flat(recipe.to_json()) for recipe in (load_recipe(file), load_recipe(folder / "recipe.yaml")))
    differing = {key for key in before.keys() | after.keys() if before.get(key, {}) != after.get(key, {})}
    assert differing <= changed.keys()
    assert {key: after[key] for key in changed} == changed


class ReadyError(Exception):
    """Raised in place of the first step of training."""


@pytest.mark.parametrize("file", [file for file in FILES if file not in CARRIED_OUT], ids=lambda file: file.stem)
def test_a_recipe_is_ready(file: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, changed = load_recipe(file), overridden(file, root, tmp_path / "run")
    tried, begun = [], []

    def trying(*args: Any) -> Any:
        tried.append(quantize(*args))
        return tried[-1]

    def begin(*args: Any) -> NoReturn:
        begun.append(args)
        raise ReadyError

    monkeypatch.setattr("spikezip.training.check.quantize", trying)
    monkeypatch.setattr("spikezip.training.run.train_stage", begin)
    with pytest.raises(ReadyError):
        run(file, changed)
    [(work, name, model, settings, _)], [qann] = begun, tried

    stages = [name for name in ("finetune", "relu", "qat") if getattr(shipped.stages, name) is not None]
    assert stages[-1] == "qat"
    assert shipped.stages.convert is not None
    assert shipped.stages.verify is not None
    assert (name, settings) == (stages[0], getattr(work.recipe.stages, stages[0]))
    classes, first = len(work.inputs.data.classes), work.inputs.example("cpu")
    with torch.no_grad():
        assert model.eval()(**first).logits.shape == (2, classes)
    assert qann.config.num_labels == classes
    assert shipped.stages.quantize is not None
    assert {site.hi - site.lo + 1 for site in qann.sites.values()} == {shipped.stages.quantize.levels}
    for stage in stages:
        arguments = arguments_for(
            getattr(work.recipe.stages, stage), tmp_path, len(work.inputs.data.train), **ARGUMENTS
        )
        assert arguments.learning_rate == getattr(work.recipe.stages, stage).peak_learning_rate > 0
        assert arguments.max_steps >= 2
    assert_as_shipped(file, changed, tmp_path / "run")


@pytest.mark.parametrize("file", CARRIED_OUT, ids=lambda file: file.stem)
def test_a_recipe_runs(file: Path, root: Path, tmp_path: Path) -> None:
    shipped, changed = load_recipe(file), overridden(file, root, tmp_path / "run")
    result = run(file, changed)

    stages = {name for name in STAGES if getattr(shipped.stages, name) is not None}
    trained = stages & {"finetune", "relu", "qat"}
    assert stages - trained == {"quantize", "convert", "verify"}
    assert result.metrics.keys() == trained | {"quantize", "qann", "snn"}
    for name in (*trained, "quantize"):
        assert json.loads((result.folder / name / "done.json").read_text()) == result.metrics[name]
    log = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert {entry["stage"] for entry in log if entry.get("learning_rate", 0) > 0} == trained

    assert shipped.stages.quantize is not None
    assert {site.hi - site.lo + 1 for site in result.qann.sites.values()} == {shipped.stages.quantize.levels}
    assert shipped.stages.verify is not None
    assert list(result.metrics["snn"]["accuracy_at"]) == [str(steps) for steps in shipped.stages.verify.steps]
    assert result.metrics["qat"]["grid_agreement"] == 1.0
    assert result.metrics["snn"]["exact"] is True
    certificate = Certificate.from_json((result.folder / "snn" / "certificate.json").read_text())
    assert (certificate.sites, certificate.mismatches) == (len(result.qann.sites), 0)
    assert certificate.codes > 0
    assert toys.load(result.folder / "snn").config.num_labels == len(result.qann.config.id2label)

    if "bins" in shipped.data.options:  # two polarities each, whatever the network took before
        assert result.qann.config.num_channels == 2 * shipped.data.options["bins"]

    assert_as_shipped(file, changed, result.folder)


# ---- what must be set ----


def error_of(*args: object) -> str:
    said = CliRunner().invoke(app, [str(arg) for arg in ("train", *args, "--cpu")], env={"COLUMNS": "300"})
    assert said.exit_code == 2, said.output
    return said.stderr.splitlines()[-1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_without_data_the_error_names_what_to_set(file: Path, tmp_path: Path) -> None:
    assert "--set data=FOLDER" in error_of(file, "--set", f"output={tmp_path / 'run'}")


@pytest.mark.parametrize(
    "file", [file for file in FILES if load_recipe(file).model.type is None], ids=lambda file: file.stem
)
def test_without_a_network_too(file: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    changed = overridden(file, root, tmp_path / "run")
    del changed["model.path"]
    said = error_of(file, "--set", *(f"{key}={value}" for key, value in changed.items()))
    assert "--set model=FOLDER" in said
    assert (load_recipe(file).model.path or "no model") in said


# ---- teachers and quantized networks by path ----


@pytest.fixture(scope="module")
def cifar(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    file = BY_NAME["cifar10-vit-s-8levels"]
    return run(file, overridden(file, root, tmp_path_factory.mktemp("cifar") / "run"))


@pytest.mark.parametrize("teacher", ["relu/model", "qann"])
def test_a_teacher_for_the_relu_stage(root: Path, tmp_path: Path, cifar: Trained, teacher: str) -> None:
    """As the headers of the recipes say: with label smoothing, mixup and cutmix all on. It may be quantized."""
    file = BY_NAME["cifar10-vit-s-8levels"]
    changed = overridden(file, root, tmp_path / "run")
    taught = run(file, changed, f"relu.distill={{teacher: {cifar.folder / teacher}}}", "qat=null", "verify=null")
    weights = [
        make_model(ModelSettings(path=str(folder / "relu" / "model")), open_data("cifar10", changed["data.source"]))
        for folder in (taught.folder, cifar.folder)
    ]
    assert not torch.equal(*(model.classifier.weight for model in weights))


def test_training_goes_on_from_the_folder_of_a_quantized_network(root: Path, tmp_path: Path, cifar: Trained) -> None:
    file = BY_NAME["cifar10-vit-s-8levels"]
    changed = overridden(file, root, tmp_path / "run") | {"model.path": str(cifar.folder / "qann")}
    result = run(file, changed, "qat.distill=null", "qat.epochs=2")
    assert result.metrics.keys() == {"qat", "qann", "snn"}
    assert result.metrics["snn"]["exact"]
    assert result.qann.sites.keys() == cifar.qann.sites.keys()


@pytest.mark.parametrize(
    ("folder", "name", "config", "says"),
    [
        ("snn", "cifar10", {}, "snn holds a spiking network; start from the quantized one"),
        ("qann", "cifar10", {"hidden_act": "relu"}, r"model\.config\.hidden_act: .*qann is quantized already"),
        ("qann", "cifar100", {}, "qann is quantized already and has 10 outputs, but cifar100 has 100 classes"),
    ],
)
def test_networks_that_cannot_be_started_from(
    root: Path, cifar: Trained, folder: str, name: str, config: dict[str, Any], says: str
) -> None:
    data = open_data(name, published.made(root / "data", published.DATA[name]))
    with pytest.raises(ConfigError, match=says):
        make_model(ModelSettings(path=str(cifar.folder / folder), config=config), data)


def test_a_chinese_bert_in_its_old_form(root: Path, tmp_path: Path) -> None:
    """`pytorch_model.bin`, where norms have a gamma and a beta."""
    from safetensors.torch import load_file

    new = published.made(root / "networks", published.bert)
    state = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in load_file(new / "model.safetensors").items()
    }
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((new / "config.json").read_bytes())
    data = open_data("waimai", published.made(root / "data", published.waimai))
    models: list[Any] = [make_model(ModelSettings(path=str(folder)), data) for folder in (new, tmp_path)]
    for one, other in zip(*(model.bert.encoder.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


# ---- drop path, and the rate of the reduction ----


@pytest.mark.parametrize("name", ["SwinForImageClassification", "BeitForImageClassification"])
def test_drop_path_stands_in_for_the_models_own(name: str) -> None:
    model = tiny_models.make(name).train()
    own = [module for module in model.modules() if type(module).__name__.endswith("DropPath")]
    rates = [module.drop_prob for module in own]
    assert max(rates) == pytest.approx(0.1)  # sums of floats
    pixels = tiny_models.inputs(model)["pixel_values"][:1].repeat(64, 1, 1, 1)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    def differing() -> bool:
        with torch.no_grad():
            logits = model(pixel_values=pixels).logits
        return not torch.equal(logits, logits[:1].expand_as(logits))

    torch.manual_seed(0)
    assert differing()
    with dropping_paths(model, 0.0):
        assert not differing()
    with dropping_paths(model, 0.1):
        assert [module.drop_prob for module in own] == [0.0] * len(own)
        assert differing()
    assert [module.drop_prob for module in own] == rates


def test_a_reduction_is_new_and_learns_as_fast_as_the_head() -> None:
    for name in ("ViTForImageClassification", "SwinForImageClassification"):
        model = tiny_models.make(name)
        add_reduction(model, channels=16)
        names = blocks(model)
        depth = depths(model, names)
        [matrix] = [key for key in depth if key.endswith("parametrizations.weight.0.matrix")]
        assert depth[matrix] == depth["classifier.weight"] == len(names) + 1
        assert depth[matrix.removesuffix("0.matrix") + "original"] == 0
