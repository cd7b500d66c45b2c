"""Networks as folders: a manifest, the program, its tensors, and files of the model. Nothing is pickled or run.

A weight that is integers times a scale, bit for bit, is stored as these: `quant/snap.py` shows that its grid is then
the same again.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spikezip.engines.network import SpikingNetwork
from spikezip.errors import CheckpointError, ConfigError, SpikezipError
from spikezip.ops import grid, rounding
from spikezip.ops.grid.reference import LARGEST_WEIGHT
from spikezip.program import file as program_file
from spikezip.program.freeze import Frozen, check_finite, scale_key
from spikezip.program.nodes import Grid, Program, Shape, Weight
from spikezip.program.tree import attach
from spikezip.quant.config import QuantConfig
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.snap import grids
from spikezip.version import __version__

Network = QuantizedNetwork | SpikingNetwork
FORMAT, FORMAT_VERSION = "spikezip", 2
MANIFEST, PROGRAM, CERTIFICATE = "spikezip.json", "program.json", "certificate.json"

_INTEGERS = {8: torch.int8, 16: torch.int16}
_FIELDS: dict[str, type] = {
    "kind": str, "dtype": str, "quantization": dict, "waiting": list, "tied": dict, "packed": dict, "files": dict,
}  # fmt: skip
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}")
_OURS = re.compile(r"spikezip\.json|program\.json|certificate\.json|model(-\d+-of-\d+)?\.safetensors", re.IGNORECASE)


# --- saving


@torch.no_grad()
def save(
    network: Network,
    folder: str | Path,
    *,
    compact: bool = True,
    extra: Mapping[str, bytes] | None = None,
    shard_bytes: int = 5_000_000_000,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Save a quantized or a spiking network as a folder; `load` gives back an equal program and the same bits.

    A network that is there is replaced at the very end, by renaming, so that a save that breaks off leaves it as it
    was. Files that are no part of it (a README, a recipe) stay. A certificate goes: it was for another network.

    Args:
        compact: store float weights as integers and scales where these give back the same bits, as they do once a
            network is snapped; the others stay floats, as all do with False.
        extra: further files by name, such as `config.json` and those of a processor. The manifest lists them.
        shard_bytes: more bytes of tensors than this come in several files.
        state: a state dict to store in place of the network's own tensors, as training on several devices gathers it.

    Example:
        >>> import tempfile
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> qann = quantize(model, example=torch.randn(2, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(qann, folder)
        ...     sorted(os.listdir(folder)), load(folder).program == qann.program
        (['model.safetensors', 'program.json', 'spikezip.json'], True)
    """
    if not isinstance(network, Network):
        raise ConfigError(f"save takes a quantized or a spiking network, not {type(network).__name__}")
    files, tensors, manifest = _contents(network, compact, state)
    for name, content in (extra or {}).items():
        if not _PLAIN_NAME.fullmatch(name) or _OURS.fullmatch(name):
            raise ConfigError(f"extra={name!r}: a plain file name is needed that spikezip does not use itself")
        files[name] = content
    shards = _shards(tensors, shard_bytes)
    target = Path(folder).resolve()  # a link to a folder stays one
    _finish_swap(target)
    beside = target.is_dir() and not (target / MANIFEST).exists()  # beside files of others: there is nothing to replace
    _check_target(target, (*files, *shards) if beside else ())
    staging = (target if beside else target.parent) / f".{target.name}.saving"
    shutil.rmtree(staging, ignore_errors=True)  # of a save that was killed
    staging.mkdir(parents=True)
    try:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        for name, keys in shards.items():
            save_file({key: tensors[key] for key in keys}, staging / name, metadata={"format": "pt"})
            (staging / name).chmod((staging / PROGRAM).stat().st_mode)  # safetensors lets nobody but the owner read
        manifest["files"] = {name: _digest(staging / name) for name in (*sorted(files), *shards)}
        manifest["checksum"] = _checksum(manifest)
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for file in staging.iterdir():  # on the disk, before anything else goes
            with file.open("r+b") as stream:
                os.fsync(stream.fileno())
        if beside:
            for name in (*manifest["files"], MANIFEST):
                (staging / name).rename(target / name)
        else:
            if target.exists():
                target.rename(_before(target))
            staging.rename(target)
    finally:
        _finish_swap(target)
        shutil.rmtree(staging, ignore_errors=True)


def _contents(
    network: Network, compact: bool, state: Mapping[str, Tensor] | None
) -> tuple[dict[str, bytes], dict[str, Tensor], dict[str, Any]]:
    """What is to be written: `program.json`, the tensors, and the manifest without its hashes."""
    program = network.program
    text = program_file.write(program)
    if program_file.write(program_file.read(text)) != text:
        raise SpikezipError("the program of this network cannot be written down exactly: please report this")
    waiting: list[str] = []
    if isinstance(network, QuantizedNetwork):
        waiting = network.waiting()
        found = network.tensors() | {network.scale_key(s): network.scale(s) for s in network.sites if s not in waiting}
    else:
        found = dict(network.frozen().tensors)
    if state is not None:
        missing = [name for name in found if name not in state]
        if missing:
            raise ConfigError(f"the state dict holds no {missing[0]}: it is not one of this network")
        found = {name: state[name] for name in found}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}
    try:
        _check_tensors(tensors, program, network.kind, waiting)
    except ValueError as error:
        raise ConfigError(f"this network cannot be saved: {error}") from None
    tied = _tied(found)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in tied}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": network.kind,
        "dtype": program_file.dtype_name(_dtype(program)),
        "quantization": network.quant_config.to_json(),
        "waiting": waiting,
        "tied": tied,
        "packed": _pack(network, tensors) if compact else {},
        "versions": {"spikezip": __version__, "torch": torch.__version__},
    }
    return {PROGRAM: text.encode()}, tensors, manifest


def _tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names under which a tensor stands a second time → the first name, under which it is stored."""
    first: dict[Any, str] = {}
    owners = {n: first.setdefault((x.data_ptr(), x.shape, x.stride(), x.dtype), n) for n, x in tensors.items()}
    return {name: owner for name, owner in owners.items() if owner != name and tensors[name].numel()}


def _shards(tensors: Mapping[str, Tensor], most: int) -> dict[str, list[str]]:
    """File → names of the tensors in it."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if size > most and parts[-1]:
            parts.append([])
            size = tensor.nbytes
        parts[-1].append(name)
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {f"model-{i:05}-of-{len(parts):05}.safetensors": part for i, part in enumerate(parts, 1)}


# --- replacing a folder


def _check_target(target: Path, names: Collection[str]) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is a file; a folder is needed")
    if target == Path.cwd() and (target / MANIFEST).exists():
        raise ConfigError(f"{target} is the current folder, and cannot be replaced; save to another")
    taken = [name for name in names if (target / name).exists()]
    if taken:
        raise ConfigError(f"{target} holds a {taken[0]} that spikezip did not save; choose another folder")


def _before(target: Path) -> Path:
    """Where a folder stands while it is replaced."""
    return target.parent / f".{target.name}.before-save"


def _finish_swap(target: Path) -> None:
    """End a replacement, or undo one that broke off. What is no part of the old network moves to the new folder."""
    before = _before(target)
    if not before.is_dir():
        return
    if not target.exists():
        before.rename(target)
        return
    try:
        part = set(json.loads((before / MANIFEST).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        part = set()
    for entry in before.iterdir():
        if entry.name not in part and not _OURS.fullmatch(entry.name) and not (target / entry.name).exists():
            entry.rename(target / entry.name)
    shutil.rmtree(before)


# --- loading


@torch.no_grad()
def load(folder: str | Path) -> Network:
    """The network in a folder, in `eval()`, on the CPU. A damaged, edited or foreign folder is refused, and says why.

    Neither code from the folder nor transformers is needed: the program says what the network computes.
    """
    folder = Path(folder)
    try:
        manifest = _read_manifest(folder)
        program = program_file.read(_bytes(folder, PROGRAM), str(folder / PROGRAM))
        config = QuantConfig.from_json(manifest["quantization"])
        tensors = _read_tensors(folder, manifest)
        _unpack(tensors, manifest["packed"])
        tensors |= {name: tensors[owner] for name, owner in manifest["tied"].items()}
        _check_tensors(tensors, program, manifest["kind"], manifest["waiting"])
        network = _build(manifest, program, tensors, config)
        if manifest["dtype"] != program_file.dtype_name(_dtype(program)):
            raise ValueError(f"its dtype is not {manifest['dtype']}")
    except (CheckpointError, MemoryError, OSError):
        raise
    except Exception as error:  # what somebody wrote into the folder can make anything fail
        raise CheckpointError(f"{folder} is damaged ({error}): save the network again") from error
    return network.eval()


def _build(manifest: Mapping[str, Any], program: Program, tensors: dict[str, Tensor], config: QuantConfig) -> Network:
    if manifest["kind"] == "snn":
        return SpikingNetwork(Frozen(program, tensors), config)
    network = QuantizedNetwork(program, tensors, config)
    for site in network.sites:
        if site not in manifest["waiting"]:
            network.set_scale(site, tensors[network.scale_key(site)])
    parameters = dict(network.named_parameters())
    for name, owner in manifest["tied"].items():
        if name in parameters:  # trained together, as before
            attach(network, name, parameters[owner], parameter=True)
    return network


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, after checking it and every file that it lists."""
    if not folder.is_dir():
        before = _before(folder.resolve())
        broken = f": a save broke off; rename {before} to get back what was there" if before.is_dir() else ""
        raise CheckpointError(f"there is no folder {folder}{broken}")
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {MANIFEST}: it is not a network of spikezip")
    try:
        manifest = program_file.parse_json(_bytes(folder, MANIFEST), program_file.MOST_BYTES)
    except program_file.BadFileError as error:
        raise CheckpointError(f"{path} {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a manifest of spikezip")
    version = manifest.get("format_version")
    if version == 1 or manifest.get("complete") is False:
        raise CheckpointError(
            f"{folder} is in format 1, of spikezip 0.1; this one reads format {FORMAT_VERSION}. To convert it: "
            "spikezip.files.save(spikezip.models.format1.read_format1(folder), new_folder)"
        )
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format version {version}, this spikezip reads {FORMAT_VERSION}: upgrade it")
    if manifest.get("checksum") != _checksum(manifest):
        raise CheckpointError(f"{path} was edited or damaged, its checksum does not match: save the network again")
    odd = [name for name, kind in _FIELDS.items() if not isinstance(manifest.get(name), kind)]
    if odd or PROGRAM not in manifest["files"] or manifest["kind"] not in ("qann", "snn"):
        raise CheckpointError(f"{path} is damaged at {(odd or ['files or kind'])[0]}: save the network again")
    for name, expected in manifest["files"].items():
        if _digest(_file(folder, name)) != expected:
            raise CheckpointError(f"{folder / name} was edited or cut short, its checksum does not match: restore it")
    return manifest


def _file(folder: Path, name: str) -> Path:
    """A file that a manifest may name: one in the folder itself. Links of the Hub's cache lead to its `blobs`."""
    file = folder / name
    if not _PLAIN_NAME.fullmatch(name):
        raise CheckpointError(f"{folder / MANIFEST} lists {name!r}, which is no plain file name: do not trust it")
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; {MANIFEST} lists it: restore it, or save the network again")
    here = folder.resolve()
    if file.is_symlink() and not (
        here.parent.name == "snapshots" and file.resolve().parent == here.parents[1] / "blobs"
    ):
        raise CheckpointError(f"{file} is a link to somewhere else: copy the file itself into the folder")
    return file


def _bytes(folder: Path, name: str) -> bytes:
    """The content of a file, but no more than shows that it is too long."""
    with _file(folder, name).open("rb") as file:
        return file.read(program_file.MOST_BYTES + 1)


def _read_tensors(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in manifest["files"]:
        if not (name.endswith(".safetensors") and _OURS.fullmatch(name)):
            continue
        try:
            found = load_file(folder / name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} is damaged ({error}): save the network again") from None
        if found.keys() & tensors.keys():
            raise ValueError(f"{name} holds tensors that another file holds, too")
        tensors |= found
    return tensors


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over the manifest's own content, the checksum left out."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- tensors


def _dtype(program: Program) -> torch.dtype:
    return next(site.dtype for site in program.sites.values())


def _check_tensors(tensors: dict[str, Tensor], program: Program, kind: str, waiting: Collection[str]) -> None:
    """Refuse other tensors than those of the program, by name, shape, dtype and range; put them into its order."""
    if not program.sites or not set(waiting) <= program.sites.keys():
        raise ValueError("the program has no sites, or others than are said to wait for a scale")
    frozen = not any(isinstance(node, Grid) and node.rows for node in program.nodes)
    on_grid = any(isinstance(node, Weight) and node.bits is not None for node in program.nodes)
    if (kind == "snn" and not frozen) or (kind == "qann" and on_grid):
        raise ValueError(f"its program is not that of a network of kind {kind}")
    expected = _expected(program, kind, waiting)
    odd = sorted(expected.keys() ^ tensors.keys())
    if odd:
        raise ValueError(f"{len(odd)} tensors are missing or unknown, such as {odd[0]}")
    for name, spec in expected.items():
        tensor = tensors[name] = tensors.pop(name)
        if tuple(tensor.shape) not in spec.shapes or tensor.dtype != spec.dtype:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, which its program does not say")
        if spec.is_scale and not bool(((tensor > 0) & tensor.isfinite()).all()):
            raise ValueError(f"{name} is a scale that is not positive and finite")
        if spec.largest and tensor.numel() and max(-int(tensor.min()), int(tensor.max())) > spec.largest:
            raise ValueError(f"{name} holds integers beyond {spec.largest}")
    check_finite(program, tensors)


class _Spec(NamedTuple):
    """What a tensor must be: one of some shapes, its dtype, a scale or none, integers up to `largest` or none."""

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    is_scale: bool = False
    largest: int = 0


def _expected(program: Program, kind: str, waiting: Collection[str]) -> dict[str, _Spec]:
    found: dict[str, _Spec] = {}
    for site in program.sites.values():
        if site.name not in waiting:
            name = f"{program.prefix}{site.name}.site_scale" if kind == "qann" else scale_key(site.name)
            found[name] = _Spec((site.shape[-1:],) if site.by_channel else ((), (1,)), site.dtype, True)
    weights = [node for node in program.nodes if isinstance(node, Weight)]
    for node in weights:
        if node.bits is not None:
            found[f"{node.key}.codes"] = _Spec((node.shape,), _INTEGERS[node.bits], largest=LARGEST_WEIGHT[node.bits])
            found[f"{node.key}.scale"] = _Spec(((), node.shape[:1]), node.dtype, True)
    return found | {node.key: _Spec((node.shape,), node.dtype) for node in weights if node.bits is None}


# --- packed weights


def _pack(network: Network, tensors: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Put integers and scales in the place of weights that are their product; returns what the manifest says."""
    packed: dict[str, dict[str, Any]] = {}
    behind: dict[str, str] = {}  # weight → the scale per channel of the site that it reads
    if isinstance(network, QuantizedNetwork):
        behind = {key: network.scale_key(on.site) for key, on in grids(network).items() if on.site is not None}
    for node in network.program.nodes:
        if not isinstance(node, Weight) or len(node.shape) < 2 or 0 in node.shape or node.key not in tensors:
            continue
        if tensors.keys() & {f"{node.key}.codes", f"{node.key}.scale"}:
            continue
        weight = tensors[node.key]
        channels = behind.get(node.key, "")
        for how in _ways(network.quant_config, weight, channels, tensors) if weight.is_floating_point() else ():
            codes, scale = _encode(weight, how, tensors)
            if _same_bits(_decode(codes, scale, how, tensors), weight):
                del tensors[node.key]
                tensors |= {f"{node.key}.codes": codes, f"{node.key}.scale": scale}
                packed[node.key] = how
                break
    return packed


def _ways(
    config: QuantConfig, weight: Tensor, channels: str, tensors: Mapping[str, Tensor]
) -> Iterator[dict[str, Any]]:
    """How a weight may lie on a grid: bits, the dimension of its scales, and, where it reads a site with a scale per
    channel, the name of that. A table that only a lookup reads may lie on one, too."""
    for bits in dict.fromkeys((config.weight_bits or 8, config.embedding_bits or 8, 8, 16)):
        for dim in (0, 1):  # 1: transposed before its product, as in GPT-2
            yield {"bits": bits, "dim": dim}
            if channels in tensors and tensors[channels].shape == weight.transpose(0, dim).shape[-1:]:
                yield {"bits": bits, "dim": dim, "input_scale": channels}


def _encode(weight: Tensor, how: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    matrix = weight.transpose(0, how["dim"])
    if "input_scale" in how:
        matrix = matrix * rounding.representable(tensors[how["input_scale"]])
    codes, scale = grid.weight_grid(matrix, how["bits"])
    return codes.to(_INTEGERS[how["bits"]]).transpose(0, how["dim"]).contiguous(), scale


def _decode(codes: Tensor, scale: Tensor, how: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    matrix = codes.transpose(0, how["dim"]).to(scale.dtype) * scale.view(-1, *[1] * (codes.ndim - 1))
    if "input_scale" in how:
        matrix = matrix / rounding.representable(tensors[how["input_scale"]])
    return matrix.transpose(0, how["dim"]).contiguous()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())  # -0.0 equals 0.0, but has other bits


def _unpack(tensors: dict[str, Tensor], packed: Mapping[str, Any]) -> None:
    for name, how in packed.items():
        codes, scale = tensors.pop(f"{name}.codes"), tensors.pop(f"{name}.scale")
        if codes.dtype != _INTEGERS[how["bits"]] or how["dim"] not in (0, 1) or not scale.is_floating_point():
            raise ValueError(f"{name} is not packed as the manifest says")
        tensors[name] = _decode(codes, scale, how, tensors)
