"""The pictures of docs/report.md: `spikezip demo; python tests/show/pictures.py spikezip-demo.html docs/img`."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import browser
from PIL import Image

from spikezip.demo import load_images, load_qann, normalise
from spikezip.models.networks import convert
from spikezip.show import attention_figure, neuron_figure, save_figure, trace_neurons

MARGIN = 12


def clip(page: browser.Page, first: str, last: str) -> dict[str, float]:
    """The part of the page from one element to another, with a margin."""
    boxes = [
        page.run(f"(e => e.getBoundingClientRect().toJSON())(document.querySelector({chosen!r}))")
        for chosen in (first, last)
    ]
    left, top = (min(box[side] for box in boxes) - MARGIN for side in ("left", "top"))
    right, bottom = (max(box[side] for box in boxes) + MARGIN for side in ("right", "bottom"))
    return {"x": left, "y": page.run("scrollY") + top, "width": right - left, "height": bottom - top}


def from_the_page(report: Path, folder: Path) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser.browsing(Path(profile)) as page:
        page.open(report, fragment="#t=8")
        page.screenshot(folder / "player.png", clip(page, "#player", "#player"))
        page.screenshot(folder / "charts.png", clip(page, ".charts figure", ".charts figure:nth-child(4)"))
        page.open(report, fragment="#t=10", dark=True)
        page.screenshot(folder / "player-dark.png", clip(page, "#player", "#player"))
    for name in ("player", "charts", "player-dark"):
        fewer_colours(folder / f"{name}.png")


def fewer_colours(path: Path) -> None:
    """A picture of a page has few: a third of the bytes show the same."""
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def for_papers(folder: Path) -> None:
    qann = load_qann().eval()
    snn = convert(qann)
    images, _ = load_images()
    batch = normalise(images[:1])
    at = (2, 4, 6, 8, 10, 12, 16, 24)
    figure = attention_figure(snn, batch, qann, at=at, image=images[0].permute(1, 2, 0))
    save_figure(figure, folder / "attention.png")
    traces = trace_neurons(snn, batch, {"layers.3.attention.o": [3213, 2361]})
    save_figure(neuron_figure(traces), folder / "neuron.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of docs/report.md.")
    parser.add_argument("report", type=Path, help="what `spikezip demo` wrote")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    from_the_page(options.report, options.folder)
    for_papers(options.folder)


if __name__ == "__main__":
    main()
