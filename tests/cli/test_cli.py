"""The command line, run as a user would, on tiny random models."""

import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner, Result

import spikezip
import spikezip.cli
from spikezip.cli import data
from spikezip.cli.app import app
from spikezip.errors import InputError

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "a", "good", "bad", "film", "so", "very", "dull", "fine", "it", "was"]


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ok(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*args: object) -> str:
    """Exit code 2 and one line on stderr, without a traceback; returns the line."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two float models, their data, and their quantized and spiking networks."""
    home = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    vit = transformers.ViTConfig(**TINY, image_size=16, patch_size=8, num_labels=3, hidden_act="relu")
    transformers.ViTForImageClassification(vit).save_pretrained(home / "vit")
    (home / "vit" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2]}'
    )
    images = rng.integers(0, 256, (10, 16, 16, 3), dtype=np.uint8)
    np.savez(home / "images.npz", x=images, y=rng.integers(0, 3, 10))

    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(home / "bert")
    bert = transformers.BertConfig(**TINY, vocab_size=len(WORDS), max_position_embeddings=12, num_labels=2)
    transformers.BertForSequenceClassification(bert).save_pretrained(home / "bert")
    lines = [f"{i % 2}\t{' '.join(rng.choice(WORDS[5:], rng.integers(1, 20)))}" for i in range(9)]
    (home / "dev.tsv").write_text("\n".join(["label\tsentence", *lines]) + "\n")

    ok("quantize", home / "vit", home / "vit-qann", "--data", home / "images.npz", "--levels", 16, "--site", "*.p=8")
    ok("convert", home / "vit-qann", home / "vit-snn")
    ok("quantize", home / "bert", home / "bert-qann", "--data", home / "dev.tsv", "--weight-bits", 16)
    ok("convert", home / "bert-qann", home / "bert-snn")
    return home


# ---- the way from a float model to numbers ----


def test_quantize_sets_what_it_was_told(home: Path) -> None:
    qann = spikezip.load(home / "vit-qann")
    assert qann.kind == "qann"
    assert qann.quant_config == spikezip.QuantConfig(levels=16, sites={"*.p": spikezip.SiteConfig(levels=8)})
    assert spikezip.load(home / "bert-qann").quant_config.weight_bits == 16


def test_tokenizer_and_processor_files_go_along(home: Path) -> None:
    for kind in ("qann", "snn"):
        assert (home / f"bert-{kind}" / "tokenizer.json").is_file()
        assert (home / f"vit-{kind}" / "preprocessor_config.json").is_file()


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_verify_is_exact_and_writes_the_certificate(home: Path, name: str, file: str) -> None:
    text = ok("verify", home / f"{name}-qann", home / f"{name}-snn", "--data", home / file, "--batch-size", 4)
    assert text.startswith("exact\n")
    certificate = spikezip.Certificate.from_json((home / f"{name}-snn" / "certificate.json").read_text())
    assert certificate.exact
    assert certificate.samples == (10 if name == "vit" else 9)


def test_verify_without_snn_and_with_other_settings(home: Path) -> None:
    ok(
        *("verify", home / "vit-qann", "--data", home / "images.npz", "--samples", 3),
        *("--engine", "spike", "--coding", "rate", "--max-spike", 4),
    )
    certificate = json.loads((home / "vit-qann" / "certificate.json").read_text())
    assert certificate["samples"] == 3
    settings = certificate["settings"]
    assert (settings["engine"], settings["coding"], settings["max_spike"]) == ("spike", "rate", 4)


def test_verify_says_no_with_exit_code_1(home: Path, tmp_path: Path) -> None:
    other = spikezip.load(home / "vit-qann")
    next(iter(other.sites.values())).scale.data.mul_(3)
    spikezip.save(spikezip.convert(other), tmp_path / "other")
    result = run("verify", home / "vit-qann", tmp_path / "other", "--data", home / "images.npz")
    assert result.exit_code == 1
    assert result.stdout.startswith("NOT exact\n")
    assert "first difference" in result.stdout
    assert not json.loads((tmp_path / "other" / "certificate.json").read_text())["exact"]


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_simulate_to_equilibrium(home: Path, tmp_path: Path, name: str, file: str) -> None:
    numbers_file = tmp_path / "numbers.json"
    text = ok(
        *("simulate", home / f"{name}-snn", "--data", home / file, "--steps", "equilibrium"),
        *("--batch-size", 4, "--json", numbers_file),
    )
    assert "T_eq: min" in text
    assert "accuracy" in text
    numbers = json.loads(numbers_file.read_text())
    rows = numbers["over_time"]
    assert len(rows) == numbers["t_eq"]["max"] + 1
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["agreement"] == 1.0
    assert rows[-1]["distance"] == 0.0
    assert numbers["unsettled"] == 0
    assert rows[-1]["spikes_per_neuron"] == numbers["spikes_per_neuron"] > 0


def test_simulate_gives_the_numbers_of_the_library(home: Path, tmp_path: Path) -> None:
    ok("simulate", home / "vit-snn", "--data", home / "images.npz", "--steps", 6, "--json", tmp_path / "n.json")
    numbers = json.loads((tmp_path / "n.json").read_text())
    snn = spikezip.load(home / "vit-snn")
    samples = data.read(str(home / "images.npz"))
    (batch,) = data.batches(samples, snn, home / "vit-snn", batch_size=10)
    found = spikezip.simulate(snn, batch, steps=6)
    said = found.logits_per_step.argmax(dim=-1)
    right = (said == batch["labels"]).double().mean(dim=1)
    assert [row["accuracy"] for row in numbers["over_time"]] == pytest.approx(right.tolist())
    assert numbers["spikes_per_neuron"] == pytest.approx(found.spikes_per_neuron)
    assert numbers["t_eq_per_sample"] == found.t_eq


def test_simulate_a_model_without_a_head(home: Path, tmp_path: Path) -> None:
    ok("quantize", home / "vit", tmp_path / "qann", "--data", home / "images.npz", "--task", "base")
    ok("convert", tmp_path / "qann", tmp_path / "snn")
    text = ok("simulate", tmp_path / "snn", "--data", home / "images.npz", "--steps", 4)
    assert "agrees" not in text
    assert "distance to the last step" in text


def test_simulate_cut_short_says_so(home: Path) -> None:
    text = ok("simulate", home / "vit-snn", "--data", home / "images.npz", "--steps", 3, "--samples", 2)
    assert "2 samples had not settled" in text


def test_inspect_shows_sites(home: Path) -> None:
    for kind in ("qann", "snn"):
        text = ok("inspect", home / f"vit-{kind}")
        assert f"ViTForImageClassification, {kind.upper()}" in text
        assert "12 sites, 16 levels, 8 at *.p, 8-bit weights" in text
        assert "layers.0.attention.p" in text
        assert "0…7" in text


def test_inspect_needs_only_the_config_of_a_float_model(home: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((home / "vit" / "config.json").read_text())
    text = ok("inspect", tmp_path)
    assert "ViTForImageClassification: 12 sites, 7 products" in text
    assert "complete" in text


def test_inspect_of_an_unknown_architecture_exits_with_1(tmp_path: Path) -> None:
    config = transformers.MobileNetV1Config(architectures=["MobileNetV1ForImageClassification"])
    config.save_pretrained(tmp_path)
    result = run("inspect", tmp_path)
    assert result.exit_code == 1
    assert "no table for model type 'mobilenet_v1'" in result.stdout


def test_demo_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = types.ModuleType("spikezip.demo")
    demo.run = lambda console=None: console.print("hello") or 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spikezip.demo", demo)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (3, "hello\n")


def test_version_and_help() -> None:
    assert ok("--version") == f"spikezip {spikezip.__version__}\n"
    for verb in ("quantize", "convert", "verify", "simulate", "inspect", "demo"):
        assert f"spikezip {verb}" in ok(verb, "--help").split("Example")[1]


# ---- what goes wrong ----


def test_wrong_settings_are_refused_before_anything_is_loaded(home: Path) -> None:
    quantize = ("quantize", "no-such-model", "out", "--data", home / "images.npz")
    assert "levels=7" in fails(*quantize, "--levels", 7)
    assert "weight_bits=4" in fails(*quantize, "--weight-bits", 4)
    assert "--weight-bits many" in fails(*quantize, "--weight-bits", "many")
    assert "PATTERN=LEVELS" in fails(*quantize, "--site", "*.p")
    assert "--task dance" in fails(*quantize, "--task", "dance")
    assert "choose one of folded, spike" in fails("verify", "q", "--data", "d", "--engine", "warp")
    assert "choose one of analog, rate" in fails("verify", "q", "--data", "d", "--coding", "morse")
    assert "--steps soon" in fails("simulate", "s", "--data", "d", "--steps", "soon")
    assert run("simulate", "s", "--data", "d", "--samples", "0").exit_code == 2


def test_folders_that_are_not_what_they_should_be(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    images = home / "images.npz"
    assert "holds no spikezip.json" in fails("convert", empty, tmp_path / "out")
    assert "run `spikezip quantize`" in fails("convert", home / "vit", tmp_path / "out")
    assert "here a QANN is needed" in fails("convert", home / "vit-snn", tmp_path / "out")
    assert "here an SNN is needed" in fails("simulate", home / "vit-qann", "--data", images)
    assert "there is no folder" in fails("convert", tmp_path / "no" / "such", tmp_path / "out")
    assert "is a file" in fails("inspect", images)
    assert "not a transformers model" in fails("inspect", empty)
    assert "quantized already" in fails("quantize", home / "vit-qann", tmp_path / "out", "--data", images)


def test_nothing_of_others_is_overwritten(home: Path) -> None:
    weights = (home / "vit" / "model.safetensors").read_bytes()
    assert "would be overwritten" in fails("quantize", home / "vit", home / "vit", "--data", home / "images.npz")
    assert "would be overwritten" in fails("convert", home / "vit-qann", home / "vit")
    assert "choose another folder" in fails("convert", home / "vit-qann", home / "vit-qann")
    assert (home / "vit" / "model.safetensors").read_bytes() == weights


def test_a_new_network_does_not_inherit_a_certificate(home: Path, tmp_path: Path) -> None:
    ok("convert", home / "vit-qann", tmp_path / "snn")
    (tmp_path / "snn" / "certificate.json").write_text("{}")
    ok("convert", home / "vit-qann", tmp_path / "snn")
    assert not (tmp_path / "snn" / "certificate.json").exists()


def test_a_name_that_the_hub_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no connection\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    line = fails("convert", "some/name", tmp_path / "out")
    assert line == "error: some/name is neither a folder here nor reachable on the Hub: no connection\n"


def test_a_pattern_that_matches_no_site(home: Path, tmp_path: Path) -> None:
    line = fails("quantize", home / "vit", tmp_path, "--data", home / "images.npz", "--site", "nowhere=8")
    assert "no site matches 'nowhere'" in line


def test_images_of_another_size(home: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", x=np.zeros((1, 3, 32, 32), np.float32))
    assert "doesn't match model" in fails("verify", home / "vit-qann", "--data", tmp_path / "large.npz")


def test_traceback_on_request(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("inspect", home / "images.npz", "--traceback")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    monkeypatch.setenv("SPIKEZIP_TRACEBACK", "1")
    assert "Traceback" in run("inspect", home / "images.npz").stderr


def test_ctrl_c(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spikezip, "simulate", stopped)
    result = run("simulate", home / "vit-snn", "--data", home / "images.npz")
    assert (result.exit_code, result.stderr) == (130, "error: stopped by Ctrl-C\n")


@pytest.mark.filterwarnings("default:a differential operator:UserWarning")
def test_warnings_are_one_line(home: Path, tmp_path: Path) -> None:
    result = run("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--batches", 1)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: a differential operator in the spiking network: GELUActivation, Tanh")
    assert result.stderr.count("\n") == 1


def test_without_typer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spikezip.cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        spikezip.cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "the command line needs typer and rich: pip install 'spikezip[cli]'\n"


def test_the_library_does_not_load_the_command_line() -> None:
    program = "import sys, spikezip; sys.exit('spikezip.cli' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


# ---- data ----


@pytest.fixture(scope="module")
def vit(home: Path) -> transformers.PreTrainedModel:
    return transformers.ViTForImageClassification.from_pretrained(home / "vit")


@pytest.fixture(scope="module")
def bert(home: Path) -> transformers.PreTrainedModel:
    return transformers.BertForSequenceClassification.from_pretrained(home / "bert")


def test_images_are_normalised_and_floats_are_not(
    home: Path, tmp_path: Path, vit: transformers.PreTrainedModel
) -> None:
    images = np.full((3, 16, 16, 3), 255, np.uint8)
    (batch,) = data.batches(data.Samples(images=images), vit, home / "vit", 4)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)
    assert batch["pixel_values"][0, :, 0, 0].tolist() == pytest.approx([3.0, 2.5, 2.0])
    (batch,) = data.batches(data.Samples(images=images), vit, tmp_path, 4)  # no image processor there
    assert batch["pixel_values"].unique().tolist() == [1.0]
    floats = np.random.default_rng(0).normal(size=(3, 3, 16, 16))
    (batch,) = data.batches(data.Samples(images=floats), vit, home / "vit", 4)
    assert torch.equal(batch["pixel_values"], torch.tensor(floats, dtype=torch.float32))
    (batch,) = data.batches(data.Samples(images=floats[:, 0]), vit, home / "vit", 4)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)


def test_a_folder_of_pictures(home: Path, tmp_path: Path, vit: transformers.PreTrainedModel) -> None:
    image = pytest.importorskip("PIL.Image")
    for i in range(3):
        image.new("RGB", (20, 30), (i, 0, 255)).save(tmp_path / f"{i}.png")
    sizes = [len(batch["pixel_values"]) for batch in data.batches(data.read(str(tmp_path)), vit, tmp_path, 2)]
    assert sizes == [2, 1]
    (tmp_path / "3.png").write_text("not a picture")
    with pytest.raises(InputError, match=r"3\.png cannot be opened"):
        list(data.batches(data.read(str(tmp_path)), vit, tmp_path, 2))


def test_sentences_are_padded_and_cut(home: Path, tmp_path: Path, bert: transformers.PreTrainedModel) -> None:
    (tmp_path / "s.txt").write_text("a good film\n\n" + "very " * 50 + "bad\n")
    (batch,) = data.batches(data.read(str(tmp_path / "s.txt")), bert, home / "bert", 4)
    assert batch["input_ids"].shape == (2, 12)
    assert batch["attention_mask"].sum(dim=1).tolist() == [5, 12]
    assert "labels" not in batch


def test_tables_keep_quotation_marks_and_take_class_names(
    home: Path, tmp_path: Path, bert: transformers.PreTrainedModel
) -> None:
    (tmp_path / "t.tsv").write_text('label\ttext\nLABEL_1\t"so good\nLABEL_0\tbad" film\n')
    samples = data.read(str(tmp_path / "t.tsv"))
    assert samples.texts == ['"so good', 'bad" film']
    (batch,) = data.batches(samples, bert, home / "bert", 4)
    assert batch["labels"].tolist() == [1, 0]
    (tmp_path / "t.csv").write_text('\ufefflabel,review\n1,"good, very good"\n', encoding="utf-8")
    assert data.read(str(tmp_path / "t.csv")) == data.Samples(texts=["good, very good"], labels=["1"])


def test_data_that_cannot_be_read(home: Path, tmp_path: Path) -> None:
    def problem(name: str, content: bytes | None = None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as error:
            data.read(str(tmp_path / name))
        return str(error.value)

    assert "no such file" in problem("absent.txt")
    assert "not one of .txt, .tsv, .csv, .npz" in problem("x.parquet", b"")
    assert "its first line names a, b" in problem("x.csv", b"a,b\n1,2\n")
    assert "line 3: there is no 'text'" in problem("y.tsv", b"label\ttext\n1\tgood\n0\n")
    assert "holds no samples" in problem("x.txt", b"\n\n")
    assert "cannot be read" in problem("latin.txt", "café".encode("latin-1"))
    assert "not an .npz archive" in problem("x.npz", b"hello")
    np.savez(tmp_path / "z.npz", z=[1])
    assert "it holds z" in problem("z.npz")
    np.savez(tmp_path / "int.npz", x=np.zeros((2, 3, 4, 4), int))
    assert "not int64 [2, 3, 4, 4]" in problem("int.npz")
    np.savez(tmp_path / "short.npz", x=np.zeros((2, 3, 4, 4)), y=[1])
    assert "2 samples, but 1 labels" in problem("short.npz")


def test_data_that_does_not_fit_the_model(home: Path, tmp_path: Path) -> None:
    text, images = home / "dev.tsv", home / "images.npz"
    assert "not text" in fails("verify", home / "vit-qann", "--data", text)
    assert "not images" in fails("verify", home / "bert-qann", "--data", images)
    (tmp_path / "labels.csv").write_text("text,label\na film,odd\n")
    assert "'odd'" in fails("simulate", home / "bert-snn", "--data", tmp_path / "labels.csv")
    spikezip.save(spikezip.load(home / "bert-qann"), tmp_path / "bare")
    assert "holds no tokenizer" in fails("verify", tmp_path / "bare", "--data", text)
