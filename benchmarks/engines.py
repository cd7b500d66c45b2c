"""Images per second of the engines against a plain step loop of the same network, in one run.

    python benchmarks/engines.py                       # ViT-Tiny, 224 px, T = 32, on the CPU
    python benchmarks/engines.py --device cuda --size small --steps 64 --batch 64

Every configuration runs in a process of its own, so that peak memory is its own. No early stop: all T steps are
computed. A configuration whose spikes differ from those of the spike engine is reported as wrong, without a speed.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import time
import warnings
from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

import spikezip

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}


def build(args: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    """A network with random weights, as large as the real one; attention sharpened so that it takes time to settle."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    width, depth, heads = SIZES[args.size]
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_act="relu",
        image_size=args.image,
        num_labels=1000,
    )
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(8)
    pixels = torch.randn(args.batch, 3, args.image, args.image)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=args.levels))
    snn = spikezip.convert(spikezip.calibrate(qann.to(args.device), pixels[:2]))
    return snn, pixels.to(args.device)


def measure(args: argparse.Namespace, what: str) -> dict[str, Any]:
    """Seconds, peak memory and a fingerprint of the spikes of one configuration."""
    torch.set_num_threads(args.threads)
    snn, pixels = build(args)
    cuda = args.device.startswith("cuda")
    if what == "plain loop":
        from plain_loop import PlainViT

        plain = PlainViT(snn)

        def once() -> Any:
            return plain(pixels, args.steps)
    else:

        def once() -> Any:
            return spikezip.simulate(snn, pixels, args.steps, what, stop_early=False, chunk=args.chunk)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(args.repeats):
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = once()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    logits = result if isinstance(result, torch.Tensor) else result.logits_per_step
    spikes = {} if isinstance(result, torch.Tensor) else {k: v.tolist() for k, v in result.spike_counts.items()}
    return {
        "seconds": min(seconds),
        "memory": torch.cuda.max_memory_allocated() / 2**20 if cuda else (after - before) / 2**10,
        "spikes": spikes,
        "prediction": logits.argmax(-1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=None, help="steps the folded engine takes at once")
    parser.add_argument("--rounds", type=int, default=3, help="each engine in turn, this often; the fastest counts")
    parser.add_argument("--repeats", type=int, default=1, help="runs within a round; from 2, the first warms up")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()

    names = ("plain loop", "spike", "folded")
    results: dict[str, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    for _ in range(args.rounds):  # in turns, so that a busy moment of the machine does not fall on one of them
        for name in names:
            with context.Pool(1) as pool:
                result = pool.apply(measure, (args, name))
            if name not in results or result["seconds"] < results[name]["seconds"]:
                results[name] = result
    base = results["plain loop"]["seconds"]
    device = (
        torch.cuda.get_device_name()
        if args.device.startswith("cuda")
        else f"{platform.machine()}, {args.threads} threads"
    )
    print(
        f"ViT-{args.size}, {args.image} px, {args.levels} levels, T = {args.steps}, batch {args.batch}\n"
        f"{device}, torch {torch.__version__}"
    )
    print(f"{'':12} {'images/s':>9} {'× plain':>8} {'memory':>10}  spikes")
    table = []
    for name in names:
        r = results[name]
        if name == "plain loop":
            last = [a == b for a, b in zip(r["prediction"][-1], results["spike"]["prediction"][-1], strict=True)]
            verdict = f"last prediction agrees with ours for {sum(last)} of {len(last)}"
        else:
            verdict = "equal" if r["spikes"] == results["spike"]["spikes"] else "WRONG"
        rate = args.batch / r["seconds"]
        speed = f"{rate:9.2f} {base / r['seconds']:8.2f}" if verdict != "WRONG" else f"{'–':>9} {'–':>8}"
        print(f"{name:12} {speed} {r['memory']:6.0f} MiB  {verdict}")
        table.append({"engine": name, "images_per_second": rate, "ratio": base / r["seconds"], "verdict": verdict})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(args), "device": device, "results": table}, file, indent=2)


if __name__ == "__main__":
    main()
