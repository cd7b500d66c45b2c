"""One network, one answer: the same codes and outputs for every instruction set, thread count, batch and padding.

Networks are saved, loaded in processes of their own with other settings of torch and without numba, and compared by
hashes of the codes of all sites and of the outputs. On a machine with a GPU, the same beside the CPU:

    python tests/test_one_answer.py cuda
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import spikezip
from spikezip.engines.loop import find_primary
from spikezip.engines.quantized import quantized

NAMES = {
    "vit": "ViTForImageClassification",
    "bert": "BertForSequenceClassification",
    "llama": "LlamaForCausalLM",
    "gpt2": "GPT2LMHeadModel",  # GELU in its form with tanh, written down as single operations
}
# The vector instructions of torch, threads, numba. torch takes less where a CPU has not all of them.
SETTINGS = [("default", 1, True), ("avx2", 2, False), ("avx512", 1, False)]
CHILD = """
import sys

folder, threads, numba = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
if not numba:
    import importlib.util
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "numba" else find(name, package)
    sys.modules["numba"] = None
sys.path.insert(0, sys.argv[4])
import json
import torch
torch.set_num_threads(threads)
from test_one_answer import answers
print(json.dumps(answers(folder)))
"""


def networks() -> dict[str, tuple[Any, dict[str, Tensor]]]:
    found = {}
    for name, model in NAMES.items():
        made = tiny_models.make(model)
        batch = tiny_models.inputs(made)  # three samples; texts have mixed lengths
        qann = spikezip.quantize(made, spikezip.QuantConfig(levels=16, weight_bits=8), example=batch)
        found[name] = spikezip.calibrate(qann, batch).eval(), batch
    return found


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def answers(folder: str, device: str = "cpu", engines: tuple[str, ...] = ("event", "folded")) -> dict[str, str]:
    """Hashes of all codes and outputs of the networks in a folder, quantized and spiking."""
    found: dict[str, str] = {}
    for name in NAMES:
        path = Path(folder) / name
        qann, batch = spikezip.load(path).to(device), load_file(path / "batch.safetensors", device)
        output, codes = quantized(qann.frozen(), qann.prepare(batch))
        found.update({f"{name} {site}": digest(x.to(torch.int16)) for site, x in codes.items()})
        found[f"{name} output"] = digest(find_primary(output))
        snn = spikezip.convert(qann)
        for engine in engines:
            run = spikezip.simulate(snn, batch, steps=12, engine=engine)
            found[f"{name} {engine}"] = digest(run.logits_per_step)
            found[f"{name} {engine} spikes"] = digest(torch.cat(list(run.spike_counts.values())))
    return found


def save_networks(folder: Path) -> Path:
    for name, (qann, batch) in networks().items():
        spikezip.save(qann, folder / name)
        save_file(batch, folder / name / "batch.safetensors")
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_networks(tmp_path_factory.mktemp("networks"))


@pytest.fixture(scope="module")
def expected(saved: Path) -> dict[str, str]:
    return answers(str(saved))


@pytest.mark.parametrize(("capability", "threads", "numba"), SETTINGS)
def test_instruction_sets_threads_and_compiled_loops_do_not_matter(
    saved: Path, expected: dict[str, str], capability: str, threads: int, numba: bool
) -> None:
    env = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": str(threads)}
    args = [sys.executable, "-W", "ignore", "-c", CHILD, str(saved), str(threads), str(numba)]
    done = subprocess.run([*args, str(Path(__file__).parent)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(expected) > 100
    different = [name for name in expected if found[name] != expected[name]]
    assert not different, different[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_has_the_same_codes_in_any_company(saved: Path, name: str) -> None:
    qann, batch = spikezip.load(saved / name), load_file(saved / name / "batch.safetensors")
    whole, codes = quantized(qann.frozen(), qann.prepare(batch))
    for order in ([2], [1, 0], [1, 1, 2, 0, 2]):
        some = {key: x[order] for key, x in batch.items()}
        output, found = quantized(qann.frozen(), qann.prepare(some))
        assert torch.equal(find_primary(output), find_primary(whole)[order])
        for site in codes:
            samples = codes[site].view(3, -1)[order]  # windows of an image lie behind one another
            assert torch.equal(found[site].view(len(order), -1), samples), site


@pytest.mark.parametrize("tokens", [16, 40])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_padding_does_not_matter(saved: Path, name: str, tokens: int) -> None:
    """Codes of all tokens that are there, and outputs: a longer row of a softmax adds zeros to its sum."""
    qann, batch = spikezip.load(saved / name), load_file(saved / name / "batch.safetensors")
    longer = {key: torch.nn.functional.pad(x, (0, tokens - x.shape[1])) for key, x in batch.items()}
    short, codes = quantized(qann.frozen(), qann.prepare(batch))
    long, padded = quantized(qann.frozen(), qann.prepare(longer))
    there = batch["attention_mask"].bool()
    for site, x in codes.items():
        y = padded[site]
        token_dims = [d for d, size in enumerate(x.shape) if d and size != y.shape[d]]
        for d in token_dims:
            y = y.narrow(d, 0, x.shape[d])
        for d in token_dims:  # only tokens that are there
            real = there.view(3, *(x.shape[d] if i == d else 1 for i in range(1, x.ndim)))
            x, y = x * real, y * real
        assert torch.equal(x, y), site
    a, b = find_primary(short), find_primary(long)
    assert torch.equal(a, b) if name == "bert" else torch.equal(a[there], b[:, : a.shape[1]][there])


def compare_devices(device: str) -> None:
    """Print the first difference of each network between the CPU and another device, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        save_networks(Path(folder))
        here, there = (answers(folder, where, ("folded", "spike")) for where in ("cpu", device))
    for name in NAMES:
        mine = [key for key in here if key.startswith(f"{name} ")]
        different = [key for key in mine if here[key] != there[key]]
        print(f"{name}: {len(mine)} hashes, " + (f"first different: {different[0]}" if different else "all equal"))


if __name__ == "__main__":
    compare_devices(sys.argv[1])
