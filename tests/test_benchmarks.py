"""The benchmark: its table, its figures, and that wrong spikes get no speed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import spikezip
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.loop import ENGINES

ROOT = Path(__file__).parents[1]
NANO = ["--size", "nano", "--image", "32", "--steps", "6", "--batch", "2", "--rounds", "1", "--repeats", "1"]


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    if str(ROOT / "benchmarks") not in sys.path:  # run as a script, a file finds its neighbours
        sys.path.insert(0, str(ROOT / "benchmarks"))
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load("run")


@pytest.fixture
def args(bench: ModuleType) -> Any:
    return bench.parse([*NANO, "--threads", str(torch.get_num_threads())])


class OneSpikeMore(FoldedEngine):
    """Wrong in one place: the first sample has a spike too many in the second step, at the first site."""

    def advance(self, steps: int) -> list[Any]:
        before = self.state.done
        outputs = super().advance(steps)
        first = next(iter(self.recording.counts.values()))
        if before < 2 <= self.state.done:
            first[-1] = first[-1].clone()
            first[-1][1 - before, 0] += 1
        return outputs


class LateLogits(FoldedEngine):
    """The right spikes, but other logits."""

    def advance(self, steps: int) -> list[Any]:
        outputs = super().advance(steps)
        for output in outputs:
            output["logits"] = torch.nextafter(output["logits"], output["logits"].new_tensor(torch.inf))
        return outputs


def test_prints_one_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *NANO, "--json", str(figures)]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "ViT-nano, 32 px, 32 levels, T = 6, batch 2"
    results = {entry["name"]: entry for entry in json.loads(figures.read_text())["results"]}
    ours = [name for engine in ENGINES for name in (engine, f"{engine}, stops at equilibrium") if name in results]
    assert set(ENGINES) <= set(ours)
    assert "spike, stops at equilibrium" not in results
    assert {results[name]["verdict"] for name in ours} == {"equal"}
    assert results["plain loop"]["ratio"] == 1
    assert results["plain loop"]["verdict"].startswith("last prediction as ours for ")
    for name, entry in results.items():
        assert entry["per_second"] == pytest.approx(2 / entry["seconds"])
        (line,) = (line for line in lines if line.split("  ")[0].strip() == name)
        assert f"{entry['per_second']:.2f}" in line
        assert entry["verdict"] in line
    if not any(name.startswith("SpikingJelly") for name in results):
        assert "pip install --no-deps spikingjelly==2.0.0" in lines[-1]


@pytest.mark.parametrize(
    ("engine", "words"),
    [(OneSpikeMore, "WRONG: other spikes from step 2 on, at embeddings"), (LateLogits, "WRONG: other logits")],
)
def test_a_wrong_engine_gets_no_speed(
    engine: type[FoldedEngine], words: str, bench: ModuleType, args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "broken", engine)
    checked = bench.check(args)
    assert checked["verdicts"].pop("broken").startswith(words)
    assert checked["verdicts"].pop("broken, stops at equilibrium").startswith(words)
    assert set(checked["verdicts"].values()) == {"equal"}

    checked = bench.check(args)
    lines = [row for row in bench.rows(args) if row.engine in ("folded", "broken")]
    results = {row.name: bench.refusal(row, checked) or bench.measure(args, row, checked["counts"]) for row in lines}
    table = {entry["name"]: entry for entry in bench.tabulate(args, lines, results)}
    assert table["folded"]["per_second"] > 0
    assert table["broken"]["verdict"].startswith(words)
    assert {table["broken"][key] for key in ("seconds", "per_second", "ratio", "memory", "accuracy")} == {None}
    (line,) = (line for line in bench.text(args, list(table.values())).splitlines() if line.startswith("broken  "))
    assert line.split()[1:3] == ["–", "–"]
    assert bench.exit_code(list(table.values())) == 1
    assert bench.exit_code([table["folded"]]) == 0


def test_wrong_spikes_in_the_timed_run_are_seen(bench: ModuleType, args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bench.check(args)["counts"]
    monkeypatch.setitem(ENGINES, "folded", OneSpikeMore)
    assert bench.measure(args, bench.Row("folded", "folded"), expected)["error"].startswith("WRONG: other spikes")


def test_verdict(bench: ModuleType, args: Any) -> None:
    snn, batch, labels = bench.build(args)
    run = spikezip.simulate(snn, batch, 6)
    assert labels is None
    assert bench.verdict(run, run) == "equal"
    site = list(run.spike_counts)[3]
    counts = run.spike_counts[site].clone()
    counts[4, 1] += 1
    other = replace(run, spike_counts={**run.spike_counts, site: counts})
    assert bench.verdict(run, other) == f"WRONG: other spikes from step 5 on, at {site}"
    fewer = {name: counts for name, counts in run.spike_counts.items() if name != site}
    assert bench.verdict(run, replace(run, spike_counts=fewer)) == f"WRONG: other sites, such as {site}"
    shorter = {name: counts[:-1] for name, counts in run.spike_counts.items()}
    assert bench.verdict(run, replace(run, spike_counts=shorter)).startswith("WRONG: other spikes from step 6 on")


def test_out_of_memory_is_a_result_and_a_failure_is_not(bench: ModuleType) -> None:
    def short() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken() -> None:
        raise KeyError("x")

    row = bench.Row("plain loop")
    args = bench.parse([])
    table = bench.tabulate(args, [row], {row.name: bench.guarded(short)})
    assert table[0]["verdict"] == "out of memory"
    assert table[0]["per_second"] is None
    assert bench.exit_code(table) == 0
    table = bench.tabulate(args, [row], {row.name: bench.guarded(broken)})
    assert table[0]["verdict"] == "failed: KeyError: 'x'"
    assert bench.exit_code(table) == 1


def test_nothing_is_timed_without_a_reference(bench: ModuleType) -> None:
    checked = {"error": "out of memory"}
    assert bench.refusal(bench.Row("folded", "folded"), checked)["error"].startswith("not compared")
    assert bench.refusal(bench.Row("plain loop"), checked) is None


def test_a_trained_network_with_labels(bench: ModuleType, tmp_path: Path) -> None:
    data = tmp_path / "images.npz"
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    np.savez(data, x_test=images, y_test=np.array([1, 2, 3]))
    words = ["--network", str(ROOT / "zoo" / "cifar10-vit"), "--data", str(data), "--batch", "2", "--steps", "4"]
    args = bench.parse([*words, "--repeats", "1", "--threads", str(torch.get_num_threads())])
    assert bench.has_rivals(args)
    snn, batch, labels = bench.build(args)
    assert batch["pixel_values"].shape == (2, 3, 32, 32)
    run = spikezip.simulate(snn, batch, 4)
    result = bench.measure(args, bench.Row("folded", "folded"), bench.counts_of(run))
    assert result["accuracy"] == (run.logits.argmax(-1) == labels[:2]).float().mean().item()
    args.batch = 4
    with pytest.raises(spikezip.errors.InputError, match="holds 3 images"):
        bench.build(args)


def test_sentences(bench: ModuleType) -> None:
    words = ["--model", "bert", "--size", "nano", "--tokens", "8", "--steps", "4", "--batch", "2", "--no-spike"]
    args = bench.parse([*words, "--threads", str(torch.get_num_threads())])
    assert {row.engine for row in bench.rows(args)} == set(ENGINES) - {"spike"}
    assert set(bench.check(args)["verdicts"].values()) == {"equal"}


def test_the_plain_loop_is_the_same_network(bench: ModuleType, args: Any) -> None:
    snn, batch, _ = bench.build(args)
    logits = load("plain_loop").PlainViT(snn)(batch["pixel_values"], 32)
    # Its sums are float32: in the last bits they differ from ours, here in no spike.
    expected = spikezip.simulate(snn, batch, 32, "spike").logits_per_step
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)


def test_spikingjelly_converts_our_network() -> None:
    pytest.importorskip("spikingjelly")
    pytest.importorskip("requests")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    pixels = torch.randn(2, 3, 32, 32)
    rival = load("spikingjelly_vit").SpikingJellyViT(transformers.ViTConfig(**sizes, image_size=32), 32, pixels, 64)
    from spikingjelly.activation_based.neuron import STBIFNode

    assert sum(isinstance(module, STBIFNode) for module in rival.snn.modules()) == 12
    logits = rival(pixels, 128)
    assert logits.shape == (128, 2, 2)
    # Their sums are float32, and differ from the quantized network's in the last bits.
    torch.testing.assert_close(logits[-1], rival.qann(pixels).detach(), rtol=1e-4, atol=1e-4)


def test_growth_changes_one_thing_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = load("growth")
    args = growth.parse(["--size", "nano", "--image", "32", "--steps", "4", "--batch", "2", "--repeats", "1"])
    found = growth.variants(args)
    assert ("tokens", 17, {"image": 64}) in found
    assert all(len(change) <= 1 for _, _, change in found)
    args.vary = ["tokens"]
    assert growth.variants(args) == [entry for entry in found if entry[0] in ("base", "tokens")]
    assert growth.measure(args) > 0
    monkeypatch.setitem(ENGINES, "folded", OneSpikeMore)
    assert growth.measure(args) is None
    assert growth.line("base", 4, None, None).endswith("WRONG spikes")


def test_latency_is_that_of_runs_with_the_right_spikes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    latency = load("latency")
    small = ["--shapes", "vit-nano", "bert-nano", "--image", "32", "--tokens", "6", "--steps", "4", "--repeats", "1"]
    assert latency.main(small) == 0
    assert capsys.readouterr().out.count(" ms") == 8
    monkeypatch.setitem(ENGINES, "folded", OneSpikeMore)
    assert latency.main(small) == 1
    assert capsys.readouterr().out.count("WRONG spikes") == 4
    for odd in (["--shapes", "vit-huge"], ["--network", "somewhere"]):
        with pytest.raises(SystemExit):
            latency.parse(odd)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="about the memory of a GPU")
def test_runs_under_a_cap_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    memory = load("memory")
    small = ["--size", "nano", "--image", "32", "--steps", "4", "--batch", "2", "--caps", "1"]
    assert memory.main(small) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(memory, "same", lambda a, b: False)
    assert memory.main(small) == 1


def test_resting_compares_both_forms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    resting = load("resting")
    monkeypatch.setattr(resting.folded, "RESTS", resting.folded.RESTS)  # put back afterwards
    small = ["--size", "nano", "--image", "32", "--steps", "6", "--batch", "2", "--repeats", "1", "--device", "cpu"]
    resting.main(small)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert [line.endswith("equal") for line in lines[1:]] == [False, True, False, True]
    monkeypatch.setattr(resting, "same", lambda a, b: False)
    resting.main(small)
    assert capsys.readouterr().out.count("differ: no time") == 2
    with pytest.raises(SystemExit):
        resting.main(["--network", "somewhere"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small quantized ViT in a folder."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_channels=1, hidden_act="relu")
    qann = spikezip.quantize(transformers.ViTForImageClassification(config).eval(), spikezip.QuantConfig(levels=8))
    folder = tmp_path_factory.mktemp("against") / "vit"
    spikezip.save(spikezip.calibrate(qann, torch.randn(2, 1, 16, 16)), folder)
    return folder


def test_a_checkout_against_itself(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    against = load("against")
    small = ["--networks", str(saved), "--engines", "spike", "--batches", "2", "--steps", "4", "--rounds", "1"]
    assert against.main([str(ROOT), *small, "--busy", "1"]) == 0
    header, alone, beside, times = capsys.readouterr().out.splitlines()
    assert header.startswith("network")
    assert alone.split()[:3] == ["vit", "spike", "2"]
    assert beside.startswith("  beside 1 busy processes")
    assert [line.count(" s, ") for line in (alone, beside)] == [2, 2]
    assert all(float(ratio) > 0 for ratio in times.removeprefix("  times as long").split())
    with pytest.raises(SystemExit):
        against.parse([str(saved)])  # no checkout


def test_a_side_that_runs_another_package_is_refused(saved: Path, tmp_path: Path) -> None:
    side = load("against").Side(ROOT)
    request = {"network": str(saved), "engine": "spike", "batch": 1, "steps": 2}
    try:
        assert Path(side.ask(**request)["package"]).parent == ROOT / "spikezip"
        with pytest.raises(SystemExit, match="ConfigError"):
            side.ask(**{**request, "engine": "none"})
        side.checkout = tmp_path
        with pytest.raises(SystemExit, match="has imported"):
            side.ask(**request)
    finally:
        side.close()


def test_other_spikes_than_the_other_checkout_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    against = load("against")

    class Told:
        def __init__(self, spikes: str) -> None:
            self.spikes = spikes

        def ask(self, **request: Any) -> dict[str, Any]:
            return {"seconds": 1.0, "spikes": self.spikes}

    args = against.parse([str(ROOT), "--rounds", "1"])
    assert not against.row({"other": Told("a"), "this": Told("a")}, args, "zoo/vit", "event", 1)
    assert "1.00 times as fast" in capsys.readouterr().out
    assert against.row({"other": Told("a"), "this": Told("b")}, args, "zoo/vit", "event", 1)
    assert capsys.readouterr().out.endswith("WRONG: spikes differ\n")
    args = against.parse([str(ROOT), "--rounds", "1", "--other-bits"])
    assert not against.row({"other": Told("a"), "this": Told("b")}, args, "zoo/vit", "event", 1)
    assert "1 *" in capsys.readouterr().out


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = ["[PAD]", "a", "good", "bad", "film", "so", "dull", "fine"]
COLUMNS = "| placement | effort | levels | {} | sites | calibration |"


def save_reader(model: Any, folder: Path) -> Path:
    """A model of texts, with a tokenizer."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_calibration_of_classifiers(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    if kind == "images":
        vit = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, num_labels=3)
        transformers.ViTForImageClassification(vit).save_pretrained(folder)
        data = tmp_path / "images.npz"
        rng = np.random.default_rng(0)
        np.savez(data, x=rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8), y=rng.integers(0, 3, 12))
    else:
        # Half precision, as such folders are often stored.
        bert = transformers.BertConfig(**SIZES, vocab_size=len(WORDS), max_position_embeddings=12)
        save_reader(transformers.BertForSequenceClassification(bert).half(), folder)
        data = tmp_path / "dev.tsv"
        lines = [f"{i % 2}\t{' '.join(WORDS[1 + (i + j) % 7] for j in range(1 + i % 5))}" for i in range(12)]
        data.write_text("\n".join(["label\tsentence", *lines]) + "\n")
    options = ["--levels", "256", "16", "--effort", "quick", "--samples", "8", "--batch-size", "4"]
    networks = ["--device", "cpu", "--save", str(tmp_path / "networks")]
    load("calibration").main([str(folder), str(data), str(data), *options, *networks])
    float_line, header, _, *rows = capsys.readouterr().out.splitlines()
    assert float_line.endswith(f"% of 12 {kind}")
    assert header == COLUMNS.format("accuracy | as float")
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:3] for row in cells] == [["products", "quick", "256"], ["products", "quick", "16"]]
    assert float(cells[0][4].removesuffix(" %")) > 80
    qann = spikezip.load(tmp_path / "networks" / "products-quick-16")
    assert {site.levels for site in qann.sites.values()} == {16}
    assert len(qann.sites) == int(cells[1][5])


def test_calibration_of_a_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.LlamaConfig(**SIZES, vocab_size=len(WORDS), max_position_embeddings=16, bos_token_id=1)
    folder = save_reader(transformers.LlamaForCausalLM(config), tmp_path / "llama")
    words = ["--own", "4", "--width", "8", "--levels", "256", "--effort", "quick"]
    load("perplexity").main([str(folder), *words])
    float_line, header, _, row = capsys.readouterr().out.splitlines()
    assert float_line.endswith("on 4 windows of 8 tokens")
    assert header == COLUMNS.format("perplexity | over float")
    assert abs(float(row.split(" | ")[4]) - 1) < 0.01
