"""Speed and memory of every engine, of a plain step loop and of SpikingJelly, in one run and one table.

    python benchmarks/run.py                           # ViT-Tiny, 224 px, T = 32, on the CPU
    python benchmarks/run.py --device cuda --size small --steps 64 --batch 64 --no-spike
    python benchmarks/run.py --model bert --size base --tokens 64 --batch 4
    python benchmarks/run.py --network zoo/cifar10-vit --data cifar10.npz --steps 64 --batch 32

Shapes, T, batch and device are the same for all rows. Weights are random, unless a trained network is named. Every
row runs in a process of its own, so that peak memory is its own. Before any timing, each row of ours is compared with
the spike engine on the first samples: the spikes of all sites and steps, and the logits. The timed runs must have the
same spikes there, too. Samples of a trained network that leave when they are sure have theirs compared up to then. A
row that differs is WRONG, gets no speed, and the exit code is 1.

Memory is all that is allocated on a GPU, weights included; on the CPU what the process grows by while it runs, which
includes compiled loops.

SpikingJelly appears if it is installed: pip install --no-deps spikingjelly==2.0.0; pip install loguru requests
"""

import argparse
import json
import multiprocessing
import platform
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from networks import SIZES, build, title
from torch import Tensor
from verdicts import Counts, counts_of, counts_verdict, cut_off, verdict

import spikezip
from spikezip.engines.engine import Run
from spikezip.engines.loop import ENGINES
from spikezip.errors import SpikezipError
from spikezip.measure.exit_rule import ExitRule
from spikezip.measure.exits import Exits, simulate_until_confident

IMPORTED = ["spikezip.measure.exits", "transformers.models.vit.modeling_vit"]  # what takes long, torch among it
INSTALL = "pip install --no-deps spikingjelly==2.0.0; pip install loguru requests"


@dataclass(frozen=True)
class Row:
    """A line of the table; `engine` is None for what is not ours."""

    name: str
    engine: str | None = None
    stop_early: bool = False
    confident: bool = False
    tf32: bool = False


def rows(args: argparse.Namespace) -> list[Row]:
    """What is compared. Plain loop and SpikingJelly know one architecture: a ViT with ReLU."""
    found = []
    if has_rivals(args):
        found.append(Row("plain loop"))
        if not missing_packages():
            name = f"SpikingJelly {metadata.version('spikingjelly')}"
            found.append(Row(name))
            if args.device.startswith("cuda"):
                found.append(Row(f"{name}, TF32 products", tf32=True))
    for engine in ENGINES:
        if engine == "event" and args.device.startswith("cuda"):
            continue  # it computes on the CPU
        if engine != "spike":
            found += [Row(engine, engine), Row(f"{engine}, stops at equilibrium", engine, stop_early=True)]
            if args.network is not None:  # random weights are never sure
                found.append(Row(f"{engine}, leaves when sure", engine, confident=True))
        elif not args.no_spike:
            found.append(Row(engine, engine))
    return found


def has_rivals(args: argparse.Namespace) -> bool:
    if args.network is None:
        return bool(args.model == "vit")
    config = json.loads((args.network / "config.json").read_text(encoding="utf-8"))
    is_vit = config.get("architectures") == ["ViTForImageClassification"]
    return is_vit and config.get("float_config", config).get("hidden_act") == "relu"


def missing_packages() -> list[str]:
    return [package for package in ("spikingjelly", "loguru", "requests") if find_spec(package) is None]


# --- are the spikes right?


def simulate(args: argparse.Namespace, row: Row, snn: Any, batch: dict[str, Tensor]) -> Run | Exits:
    assert row.engine is not None
    if row.confident:
        rule = ExitRule("margin", args.margin, patience=2)
        return simulate_until_confident(snn, batch, rule, row.engine, chunk=args.chunk, max_steps=args.steps)
    return spikezip.simulate(snn, batch, args.steps, row.engine, stop_early=row.stop_early, chunk=args.chunk)


def compare(expected: Run, args: argparse.Namespace, row: Row, snn: Any, batch: dict[str, Tensor]) -> str:
    return verdict(expected, simulate(args, row, snn, batch))


def check(args: argparse.Namespace) -> dict[str, Any]:
    """The spikes of the reference on the first samples, and for each row of ours whether it has the same."""
    torch.set_num_threads(args.threads)
    snn, batch, _ = build(args)
    few = {name: values[: args.check] for name, values in batch.items()}
    expected = simulate(args, Row("reference", "spike"), snn, few)
    assert isinstance(expected, Run)
    verdicts = {}
    for row in rows(args):
        if row.engine is not None:
            result = guarded(partial(compare, expected, args, row, snn, few))
            verdicts[row.name] = result if isinstance(result, str) else result["error"]
    return {"counts": counts_of(expected), "verdicts": verdicts}


def refusal(row: Row, checked: dict[str, Any]) -> dict[str, Any] | None:
    """Why a row is not timed: spikes of ours that are wrong, or could not be compared."""
    if row.engine is None:
        return None
    words = f"not compared: spike engine {checked['error']}" if "error" in checked else checked["verdicts"][row.name]
    return None if words == "equal" else {"error": words}


# --- speed and memory


def measure(args: argparse.Namespace, row: Row, expected: Counts | None) -> dict[str, Any]:
    """Seconds, peak memory, last predictions. Of ours, every run must have the expected spikes in the first samples."""
    torch.set_num_threads(args.threads)
    cuda = args.device.startswith("cuda")
    snn, batch, labels = build(args)
    once = prepare(args, row, snn, batch)
    del snn  # SpikingJelly does not need it
    before = peak_resident(reset=True)
    seconds = []
    result: Any = None
    for _ in range(args.repeats if row.engine else min(args.repeats, 2)):  # rivals record nothing
        result = None  # what the last run returned is not this one's memory
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = once()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        if isinstance(result, (Run, Exits)) and expected is not None:
            words = counts_verdict(cut_off(expected, result), counts_of(result, args.check))
            if words != "equal":
                return {"error": words}
    memory = torch.cuda.max_memory_allocated() / 2**20 if cuda else peak_resident() - before
    taken: float = args.steps
    if isinstance(result, Exits):
        predictions, taken = result.answers.cpu(), result.steps.float().mean().item()
    elif isinstance(result, Run):
        predictions, taken = result.logits_per_step[-1].argmax(-1).cpu(), result.computed_steps
    else:
        predictions = result[-1].argmax(-1).cpu()
    same_network = not row.name.startswith("SpikingJelly")
    right = None if labels is None or not same_network else (predictions == labels[: args.batch]).float().mean().item()
    return {
        "seconds": min(seconds),
        "memory": memory,
        "predictions": predictions.tolist(),
        "accuracy": right,
        "computed_steps": taken,
    }


def prepare(args: argparse.Namespace, row: Row, snn: Any, batch: dict[str, Tensor]) -> Callable[[], Any]:
    """What is timed, as a function without arguments."""
    if row.engine is not None:
        return lambda: simulate(args, row, snn, batch)
    pixels = batch["pixel_values"]
    if row.name == "plain loop":
        from plain_loop import PlainViT

        plain = PlainViT(snn)
        return lambda: plain(pixels, args.steps)
    from spikingjelly_vit import SpikingJellyViT

    torch.backends.cuda.matmul.allow_tf32 = row.tf32
    torch.backends.cudnn.allow_tf32 = row.tf32
    rival = SpikingJellyViT(snn.config, next(iter(snn.neurons.values())).levels, pixels[:2], args.steps)
    return lambda: rival(pixels, args.steps)


def peak_resident(reset: bool = False) -> float:
    """MiB of memory at the peak so far; Linux can begin anew, others count from the start of the process."""
    if reset:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    with suppress(OSError):
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
        if peak:
            return int(peak[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# --- processes


def guarded(work: Callable[[], Any]) -> Any:
    """What `work` returns; of an error what the table says about it."""
    try:
        return work()
    except SpikezipError as error:
        return {"error": f"failed: {error}", "refused": True}
    except (torch.OutOfMemoryError, MemoryError):
        return {"error": "out of memory"}
    except Exception as error:
        short = "not enough memory" in str(error) or "can't allocate memory" in str(error)  # torch on the CPU
        return {"error": "out of memory" if short else f"failed: {type(error).__name__}: {error}"}


def _child(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(guarded(lambda: function(*arguments)))
    pipe.close()


def alone(device: str, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Call a function in a fresh process. Where the system kills it, that is for memory.

    On a CPU it comes from a server that has imported all that is needed, and has run nothing. A process that forks must
    not have touched a GPU, and some import might: there each one starts anew.
    """
    served = not device.startswith("cuda") and "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if served else "spawn")
    if served:
        context.set_forkserver_preload(IMPORTED)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        result: dict[str, Any] = here.recv()
    except EOFError:
        result = {}
    process.join()
    killed = "out of memory" if process.exitcode == -9 else f"failed: the process ended with {process.exitcode}"
    return result or {"error": killed}


# --- the table


def describe(row: Row, result: dict[str, Any], ours: list[int] | None) -> str:
    """The last column. What is not ours need not have our spikes."""
    if "error" in result:
        return str(result["error"])
    if row.engine is not None:
        return "equal"
    if row.name != "plain loop":
        return "another network of the same shape"
    if ours is None:
        return "nothing to compare with"
    same = sum(a == b for a, b in zip(result["predictions"], ours, strict=True))
    return f"last prediction as ours for {same} of {len(ours)}"


def tabulate(args: argparse.Namespace, lines: list[Row], results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per row; where there was an error, wrong spikes among them, it has no figures."""
    ours = next(
        (results[r.name].get("predictions") for r in lines if r.engine and "error" not in results[r.name]), None
    )
    table: list[dict[str, Any]] = []
    for row in lines:
        result = results[row.name]
        entry = {"name": row.name, "engine": row.engine, "stop_early": row.stop_early, "confident": row.confident}
        entry["verdict"] = describe(row, result, ours)
        keys = ("seconds", "memory", "accuracy", "computed_steps")
        table.append(entry | {key: None if "error" in result else result[key] for key in keys})
    base = next((e["seconds"] for name in ("plain loop", "spike") for e in table if e["name"] == name), None)
    for entry in table:
        seconds = entry["seconds"]
        entry["per_second"] = None if seconds is None else args.batch / seconds
        entry["ratio"] = None if seconds is None or base is None else base / seconds
    return table


def text(args: argparse.Namespace, table: list[dict[str, Any]]) -> str:
    """The table as it is printed."""
    unit = "images/s" if args.model == "vit" or args.network else "sentences/s"
    base = "× plain" if table[0]["name"] == "plain loop" else "× spike"
    labelled = any(entry["accuracy"] is not None for entry in table)
    wide = max(len(entry["name"]) for entry in table)
    out = [f"{'':{wide}} {unit:>11} {base:>8} {'memory':>10}{'  accuracy' if labelled else ''}  spikes"]
    for entry in table:
        speed, ratio, memory = (
            "–" if entry[key] is None else f"{entry[key]:{form}}"
            for key, form in (("per_second", ".2f"), ("ratio", ".2f"), ("memory", ".0f"))
        )
        accuracy = (
            "" if not labelled else f"{'–' if entry['accuracy'] is None else format(entry['accuracy'], '.2%'):>10}"
        )
        words = entry["verdict"]
        if entry["seconds"] is not None and (entry["stop_early"] or entry["confident"]):
            each = " on average" if entry["confident"] else ""
            words += f"; {entry['computed_steps']:.3g} of {args.steps} steps{each}"
        out.append(f"{entry['name']:{wide}} {speed:>11} {ratio:>8} {memory:>6} MiB{accuracy}  {words}")
    return "\n".join(out)


def exit_code(table: list[dict[str, Any]]) -> int:
    """1 where spikes are wrong, could not be compared, or a row failed; running out of memory is a result."""
    return int(any(entry["verdict"].startswith(("WRONG", "not compared", "failed")) for entry in table))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("vit", "bert"), default="vit")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--image", type=int, default=224, help="height and width of the images")
    parser.add_argument("--tokens", type=int, default=64, help="length of the sentences, for --model bert")
    parser.add_argument("--network", type=Path, help="a trained network instead: a folder that spikezip has saved")
    parser.add_argument("--data", type=Path, help="its images: .npz with x_test, y_test or x, y")
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--check", type=int, default=4, help="samples on which the spikes are compared")
    parser.add_argument("--no-spike", action="store_true", help="do not time the spike engine; it still is the judge")
    parser.add_argument("--chunk", type=int, default=None, help="steps that an engine takes at once")
    parser.add_argument("--rounds", type=int, default=3, help="each row in turn, this often; the fastest run counts")
    parser.add_argument("--repeats", type=int, help="runs within a round; the first ones warm up: 3, on a GPU 5")
    parser.add_argument("--margin", type=float, default=2.0, help="lead of the best answer at which a sample leaves")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args(words)
    if (args.network is None) != (args.data is None):
        parser.error("--network and --data go together")
    if args.network is not None and not (args.network / "config.json").is_file():
        parser.error(f"--network {args.network}: there is no config.json")
    if args.data is not None and not args.data.is_file():
        parser.error(f"--data {args.data}: there is no such file")
    if args.repeats is None:
        # On a GPU the first run chooses its chunks without knowing the network, the second sees the kernels that the
        # first has chosen, and the third may be the one that records a graph.
        args.repeats = 5 if args.device.startswith("cuda") else 3
    for name in ("steps", "batch", "check", "rounds", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    args.check = min(args.check, args.batch)
    return args


def main() -> int:
    args = parse()
    checked = alone(args.device, check, args)
    if checked.get("refused"):
        sys.exit(f"run.py: {checked['error'].removeprefix('failed: ')}")
    lines = rows(args)
    results: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):  # in turns, so that a busy moment of the machine does not fall on one of them
        for row in lines:
            known = results.get(row.name) or refusal(row, checked)
            if known is None or "error" not in known:
                result = alone(args.device, measure, args, row, checked.get("counts"))
                if known is None or "error" in result or result["seconds"] < known["seconds"]:
                    known = result
            results[row.name] = known
            seconds = known.get("seconds")
            told = known.get("error") or f"{args.batch / seconds:.2f} per second"
            print(f"{row.name}: {told}", file=sys.stderr, flush=True)  # it takes minutes
    cuda = args.device.startswith("cuda")
    device = torch.cuda.get_device_name(args.device) if cuda else f"{platform.machine()}, {args.threads} threads"
    table = tabulate(args, lines, results)
    print(f"{title(args)}\n{device}, torch {torch.__version__}\n{text(args, table)}")
    if has_rivals(args) and missing_packages():
        print(f"without SpikingJelly, as {', '.join(missing_packages())} cannot be imported: {INSTALL}")
    if args.json:
        arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        figures = {"arguments": arguments, "device": device, "torch": torch.__version__, "results": table}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return exit_code(table)


if __name__ == "__main__":
    sys.exit(main())
