"""Whole runs: accuracy rises, the spiking network is the quantized one, and the folder holds everything."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toys
import transformers

import spikezip
from spikezip.data.images import Images
from spikezip.errors import ConfigError
from spikezip.training import Progress, Trained, load_recipe, train
from spikezip.training.recipe import Recipe

DATA = toys.images()
STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=6, learning_rate=2e-2, keep="best"),
    "quantize": {"levels": 16, "batches": 2},
    "qat": toys.stage(epochs=2, learning_rate=5e-4, distill={}),
    "convert": True,
    "verify": {"samples": 32, "steps": [4, 64], "engine": "folded"},
}
TEXT_STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=5, dropout=0.0, learning_rate=1e-2),
    "quantize": {"batches": 2, "embedding_bits": 8},
    "qat": toys.stage(epochs=1, learning_rate=5e-4, distill={}),
    "convert": True,
    "verify": {"samples": 32},
}
Watched = tuple[Trained, list[Progress]]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    seen: list[Progress] = []
    model = toys.vit(seed=1, hidden_act="gelu")
    return toys.run(model, STAGES, DATA, tmp_path_factory.mktemp("images") / "run", progress=seen.append), seen


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIKEZIP_CACHE", str(home / "cache"))
        return toys.run(toys.bert(), TEXT_STAGES, toys.texts(), home / "run", tokenizer=toys.tokenizer())


def test_images_are_learned_and_survive_quantization(images: Watched) -> None:
    metrics = images[0].metrics
    assert metrics["relu"]["accuracy"] > 0.9
    assert metrics["qann"]["accuracy"] > metrics["relu"]["accuracy"] - 0.05
    assert metrics["qat"]["grid_agreement"] == metrics["qann"]["grid_agreement"] == 1.0


def test_text_is_learned_and_survives_quantization(text: Trained) -> None:
    assert text.metrics["relu"]["accuracy"] > 0.9
    assert text.metrics["qann"]["accuracy"] > text.metrics["relu"]["accuracy"] - 0.05
    assert text.metrics["qat"]["grid_agreement"] == 1.0
    assert text.qann.quant_config.embedding_bits == 8
    assert text.qann.config.hidden_act == "relu"


@pytest.mark.parametrize("kind", ["images", "text"])
def test_the_spiking_network_is_the_quantized_one(kind: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(kind)
    result: Trained = made[0] if kind == "images" else made
    assert result.certificate is not None
    assert result.certificate.exact
    assert result.certificate.mismatches == 0
    assert result.certificate.samples == 32
    for name in ("qann", "snn"):
        written = spikezip.Certificate.from_json((result.folder / name / "certificate.json").read_text())
        assert written == result.certificate
    snn = result.metrics["snn"]
    test, labels = _test_batch(result, 32)
    with torch.no_grad():
        right = (result.qann.eval()(**test).logits.argmax(-1) == labels).float().mean().item()
    assert snn["accuracy"] == pytest.approx(right)  # a quotient, in float32 and in float64
    assert snn["over_time"][-1]["agreement"] == 1.0


def _test_batch(result: Trained, count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The first samples of the test data, prepared without the library's help."""
    if result.metrics["qann"]["samples"] == len(DATA.test):
        batch = DATA.test.__getitems__(range(count))
        return {"pixel_values": (batch["pixel_values"].float() / 255 - 0.5) / 0.5}, batch["labels"]
    held = toys.texts().test.__getitems__(range(count))
    tokens = toys.tokenizer()(held["texts"], padding=True, pad_to_multiple_of=8, return_tensors="pt")
    return dict(tokens), held["labels"]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_saved_networks_load_and_compute_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(kind)
    result: Trained = made[0] if kind == "images" else made
    batch, _ = _test_batch(result, 16)
    qann, snn = toys.load(result.folder / "qann"), toys.load(result.folder / "snn")
    with torch.no_grad():
        expected = result.qann.eval()(**batch).logits
        assert torch.equal(qann(**batch).logits, expected)
        assert torch.equal(snn(**batch).logits, expected)


def test_reported_loss_and_accuracy_are_those_of_the_saved_network(images: Watched) -> None:
    result = images[0]
    model = transformers.AutoModelForImageClassification.from_pretrained(result.folder / "relu" / "model").eval()
    assert model.config.hidden_act == "relu"
    assert model.config.id2label == dict(enumerate(toys.CLASSES)) or model.config.num_labels == 4
    batch, labels = _test_batch(result, len(DATA.test))
    with torch.no_grad():
        logits = model(**batch).logits
    assert result.metrics["relu"]["accuracy"] == (logits.argmax(-1) == labels).double().mean().item()
    # 96 samples were evaluated in batches of 64 and 32: float32 products in batches of other sizes.
    assert result.metrics["relu"]["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


def test_the_best_network_was_kept(images: Watched) -> None:
    relu = images[0].metrics["relu"]
    lines = [json.loads(line) for line in (images[0].folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = {e["step"]: e["eval_accuracy"] for e in lines if e["stage"] == "relu" and "eval_accuracy" in e}
    assert list(evaluated) == [8, 16, 24, 32, 40, 48]
    best = max(evaluated.values())
    assert relu["best_validation_accuracy"] == relu["accuracy"] == best  # validation is the test split
    assert relu["best_step"] == next(step for step, value in evaluated.items() if value == best)
    assert (relu["kept"], relu["chosen_on_test"]) == ("best", True)
    assert not images[0].metrics["qat"]["chosen_on_test"]


def test_the_folder_holds_everything(images: Watched) -> None:
    result = images[0]
    asked = Recipe.from_json({"name": "toy", "stages": STAGES})
    assert load_recipe(result.folder / "recipe.yaml") == asked
    versions = json.loads((result.folder / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["transformers"] == transformers.__version__
    results = json.loads((result.folder / "results.json").read_text())
    assert results["metrics"] == json.loads(json.dumps(result.metrics))
    assert results["data"] == {"name": "corners", "note": "made up"}
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines} == {"relu", "quantize", "qat", "verify"}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    for stage in ("relu", "quantize", "qat"):
        done = json.loads((result.folder / stage / "done.json").read_text())
        assert done == json.loads(json.dumps(result.metrics[stage]))
    for network in ("relu/model", "quantize/model", "qat/model", "qann", "snn"):
        described = json.loads((result.folder / network / "preprocessor_config.json").read_text())
        assert described["image_mean"] == [0.5, 0.5, 0.5]
        assert described["size"] == {"height": 8, "width": 8}
    assert not list(result.folder.rglob("checkpoint-*"))


def test_text_networks_have_their_tokenizer(text: Trained) -> None:
    for network in ("relu/model", "qann", "snn"):
        read = transformers.AutoTokenizer.from_pretrained(text.folder / network)
        assert read("red sea")["input_ids"] == toys.tokenizer()("red sea")["input_ids"]


def test_progress_comes_in_order_and_reaches_the_end(images: Watched) -> None:
    seen = images[1]
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["relu", "quantize", "qat", "verify"]
    for stage in stages:
        own = [progress for progress in seen if progress.stage == stage]
        assert [progress.done for progress in own] == sorted(progress.done for progress in own)
        assert own[-1].done == own[-1].total
    assert seen[-1].total == 32
    last = [progress for progress in seen if progress.stage == "qat"][-1].numbers
    assert set(last) == {"loss", "accuracy", "agreement"}


def test_the_model_given_stays_as_it_was(tmp_path: Path) -> None:
    model = toys.vit(hidden_act="gelu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = toys.run(model, {"relu": toys.stage(epochs=1)}, toys.images(train=64), tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.hidden_act == "gelu"
    assert not toys.same_weights(result.model, model)
    with pytest.raises(ConfigError, match="no quantize stage: the result is a float model"):
        _ = result.qann


def test_a_quantized_network_skips_what_it_has_behind_it(images: Watched, tmp_path: Path) -> None:
    stages = {**STAGES, "qat": toys.stage(epochs=1), "convert": False, "verify": False}
    result = toys.run(images[0].qann, stages, DATA, tmp_path / "run")
    assert list(result.metrics) == ["qat", "qann"]
    assert result.metrics["qat"]["grid_agreement"] == 1.0


def test_calibration_alone_is_a_run(images: Watched, tmp_path: Path) -> None:
    relu = str(images[0].folder / "relu" / "model")
    recipe = {"name": "toy", "stages": {"quantize": {"batches": 1, "weight_bits": 16}, "convert": True, "verify": True}}
    result = train(relu, recipe, data=toys.images(test=16), output=tmp_path / "run", cpu=True)
    assert result.certificate is not None
    assert result.certificate.exact
    assert result.certificate.samples == 16
    assert toys.load(tmp_path / "run" / "qann").quant_config.weight_bits == 16


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ({"qat": toys.stage()}, r"stages\.qat and .* need a quantized network: add a quantize stage"),
        ({"quantize": True, "qat": toys.stage(compile=True)}, "compilers reorder sums"),
        ({"relu": toys.stage(), "quantize": True, "convert": True}, "is more than the 16 training samples"),
    ],
)
def test_recipes_that_cannot_be_carried_out(tmp_path: Path, stages: dict[str, Any], says: str) -> None:
    samples = 16 if "relu" in stages else 64
    with pytest.raises(ConfigError, match=says):
        toys.run(toys.vit(hidden_act="relu"), stages, toys.images(train=samples), tmp_path / "run")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"name": "toy", "stages": {"relu": toys.stage()}}
    with pytest.raises(ConfigError, match=r"no data: name it with data\.name and data\.source"):
        train(toys.vit(), recipe, output=tmp_path / "a", cpu=True)
    with pytest.raises(ConfigError, match="no model: name one with --set model=FOLDER"):
        train(None, recipe, data=DATA, output=tmp_path / "b", cpu=True)
    with pytest.raises(ConfigError, match="a text model made from scratch has no tokenizer"):
        toys.run(toys.bert(), {"relu": toys.stage()}, toys.texts(), tmp_path / "c")
    recipe["data"] = {"max_length": 99}
    with pytest.raises(ConfigError, match=r"data\.max_length is 99, but the model has 16 positions"):
        train(toys.bert(), recipe, data=toys.texts(), tokenizer=toys.tokenizer(), output=tmp_path / "d", cpu=True)


def test_a_run_that_failed_before_its_first_figures_can_be_begun_anew(tmp_path: Path) -> None:
    data = toys.images(train=48)
    with pytest.raises(ConfigError, match="is more than the 48 training samples"):
        toys.run(toys.vit(), {"relu": toys.stage(batch_size=64)}, data, tmp_path / "run")
    result = toys.run(toys.vit(), {"relu": toys.stage(batch_size=16)}, data, tmp_path / "run")
    assert load_recipe(result.folder / "recipe.yaml").stages.relu is not None
    assert load_recipe(result.folder / "recipe.yaml").stages.relu.batch_size == 16


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_and_test_are_told_apart(tmp_path: Path, workers: int) -> None:
    """Validation is looked at in training, test is reported: here they have opposite labels."""
    data = toys.images(train=256, test=33)
    others = Images(data.test.pixels[:21], (data.test.labels[:21] + 1) % 4)
    stages = {"relu": toys.stage(epochs=6, learning_rate=2e-2)}
    result = toys.run(toys.vit(seed=1), stages, replace(data, validation=others), tmp_path / "run", workers=workers)
    with torch.no_grad():
        logits = result.model.eval()(pixel_values=data.test.pixels.float() / 127.5 - 1).logits
    found = logits.argmax(1)
    relu = result.metrics["relu"]
    assert relu["accuracy"] == (found == data.test.labels).double().mean().item()
    assert relu["validation_accuracy"] == (found[:21] == others.labels).double().mean().item()
    assert relu["accuracy"] > relu["validation_accuracy"] + 0.5


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({"quantize": {"sites": {"*.nowhere": {"levels": 8}}}}, "no site matches '\\*.nowhere'"),
        ({"quantize": {"embedding_bits": 8}}, "embedding_bits"),
        ({"quantize": True, "qat": toys.stage(batch_size=512)}, "qat: batch_size 512 is more than the 64 training"),
        ({"quantize": True, "qat": toys.stage(compile=True)}, "compilers reorder sums"),
        (
            {"quantize": True, "qat": toys.stage(distill={"teacher": "runs/no/model"})},
            r"qat\.distill\.teacher: runs/no/model has no readable config: .*--set qat\.distill\.teacher=FOLDER",
        ),
        ({"convert": True}, "need a quantized network"),
    ],
)
def test_a_mistake_in_the_last_stage_is_found_before_the_first(tmp_path: Path, last: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        toys.run(toys.vit(), {"relu": toys.stage(), **last}, toys.images(64, 32), tmp_path / "run")
    assert not (tmp_path / "run" / "relu").exists()


def test_sizes_that_do_not_fit_are_said_before_training(tmp_path: Path) -> None:
    recipe = {"name": "toy", "stages": {"relu": toys.stage()}, "data": {"image_size": 16}}
    with pytest.raises(ConfigError, match=r"data\.image_size is 16, but the model takes 8 pixels per side"):
        train(toys.vit(), recipe, data=toys.images(), output=tmp_path / "run", cpu=True)


def test_a_quantized_network_keeps_its_own_settings(images: Watched, tmp_path: Path) -> None:
    stages = {"quantize": {"levels": 64}, "qat": toys.stage()}
    with pytest.raises(ConfigError, match=r"the network is quantized, as .*; start from the float model"):
        toys.run(images[0].qann, stages, toys.images(), tmp_path / "run")


def test_a_pretrained_network_goes_on_seeing_pixels_as_it_knows_them(tmp_path: Path) -> None:
    toys.vit(hidden_act="relu").save_pretrained(tmp_path / "vit")
    known = {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(known))
    stages = {"quantize": {"levels": 16, "batches": 1}}
    result = toys.run(str(tmp_path / "vit"), stages, toys.images(64, 32), tmp_path / "run")
    written = json.loads((result.folder / "qann" / "preprocessor_config.json").read_text())
    assert written["image_mean"] == known["image_mean"]
    assert written["image_std"] == known["image_std"]
