"""How fast a report opens: `python tests/show/opening.py report.html [other.html …] [--runs N]`.

Each time a browser starts with a new profile, so nothing is cached. Times are counted from the start of navigation
to the first frame that shows text, to the frame that shows the first chart, and to the one that shows all of them.
"""

import argparse
import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import browser

WATCH = """
window.times = {};
new PerformanceObserver(list => {
    for (const entry of list.getEntriesByName("first-contentful-paint")) times.text = entry.startTime;
}).observe({ type: "paint", buffered: true });
requestAnimationFrame(function look() {  // a frame sees what the one before it painted
    const plots = [...document.querySelectorAll(".plot")], drawn = plots.filter(plot => plot.querySelector(".xtick"));
    if (drawn.length) times.first ??= performance.now();
    if (document.documentElement?.dataset.ready && drawn.length === plots.length) times.all = performance.now();
    else requestAnimationFrame(look);
});
"""


def opened(path: Path) -> dict[str, float]:
    """Milliseconds until text, the first chart, and all charts are there."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser.browsing(Path(profile), False) as page:
        page.open(path, before=WATCH)
        page.wait("times.all !== undefined && times.text !== undefined")
        times: dict[str, float] = page.run("times")
        return times


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a report opens.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    # In turns, so that what else the machine does falls on all of them.
    rounds = [[opened(path) for path in options.files] for _ in range(options.runs)]
    print(f"load {os.getloadavg()[0]:.1f}; median and worst of {options.runs}, in s")
    for path, found in zip(options.files, zip(*rounds, strict=True), strict=True):
        shown = {key: [times[key] / 1000 for times in found] for key in ("text", "first", "all")}
        said = ", ".join(f"{key} {statistics.median(each):.2f} {max(each):.2f}" for key, each in shown.items())
        print(f"{path.name}: {said}")


if __name__ == "__main__":
    main()
