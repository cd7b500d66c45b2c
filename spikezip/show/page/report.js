"use strict";
// The page of a spikezip report: the player of one input, the theme, tables to copy, and charts.
(() => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const data = (id) => JSON.parse(find(id).textContent);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const percent = (share) => (100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1) + " %";

  // ---- theme: the system's, until the switch is used ----

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  let printing = false;
  const changed = [];
  function setTheme() {
    const dark = !printing && (chosen === null ? system.matches : chosen === "dark");
    root.dataset.theme = dark ? "dark" : "light";
    find("theme").textContent = dark ? "light" : "dark";
    for (const tell of changed) tell();
  }
  find("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme();
  });
  system.addEventListener("change", () => setTheme());
  setTheme();

  // ---- tables and commands, copied as text that a spreadsheet takes ----

  async function copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page from a file may not be allowed to
      const area = document.body.appendChild(make("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "copied";
    button.classList.add("copied");
    setTimeout(() => {
      button.textContent = before;
      button.classList.remove("copied");
    }, 1500);
  }
  const tableText = (table) =>
    [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent).join("\t")).join("\n");
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", () => {
      const source = find(button.dataset.copy);
      copy(button, source.tagName === "TABLE" ? tableText(source) : source.textContent);
    });
  }

  // ---- the player ----

  function startPlayer(story) {
    const slider = find("step"), run = find("run");
    const last = story.steps;
    const perStep = Array.from({ length: last }, (_, t) => story.layers.reduce((sum, layer) => sum + layer.spikes[t], 0));
    const strip = drawStrip(perStep);
    const look = startLook(story);
    const bars = story.classes.map((name) => addBar(find("bars"), name === story.truth ? name + " ✓" : name));
    bars.forEach((bar, i) => bar.mark(story.qann.probabilities[i]));
    const layers = story.layers.map((layer) => addBar(find("layers"), layer.name));
    const fastest = Math.max(...story.layers.map((layer) => Math.max(...layer.spikes) / layer.neurons), 1e-9);
    let timer = null;

    function show(step) {
      const t = Math.min(Math.max(step, 1), last);
      slider.value = t;
      slider.setAttribute("aria-valuetext", `step ${t} of ${last}`);
      find("clock").textContent = `step ${t} of ${last}` + (story.t_eq !== null && t >= story.t_eq ? " · at rest" : "");
      strip(t);
      look(t);
      const said = story.predictions[t - 1];
      bars.forEach((bar, i) => bar.set(story.probabilities[t - 1][i], story.classes[i] === said, percent(story.probabilities[t - 1][i])));
      layers.forEach((bar, i) => {
        const spikes = story.layers[i].spikes[t - 1];
        bar.set(spikes / story.layers[i].neurons / fastest, true, spikes.toLocaleString("en"));
      });
      const same = said === story.qann.prediction;
      const verdict = find("verdict");
      verdict.textContent = `After step ${t} the SNN says “${said}” (${percent(story.shares[t - 1])}); ` +
        (same ? "so does the QANN." : `the QANN says “${story.qann.prediction}”.`);
      verdict.classList.toggle("same", same);
      root.dataset.step = t;
      root.dataset.prediction = said;
    }
    const now = () => Number(slider.value);
    function stop() {
      clearInterval(timer);
      timer = null;
      run.textContent = "▶ play";
      run.setAttribute("aria-pressed", "false");
      find("verdict").setAttribute("role", "status");
    }
    function play() {
      find("verdict").removeAttribute("role");  // a screen reader need not say every step
      run.textContent = "❚❚ pause";
      run.setAttribute("aria-pressed", "true");
      show(now() >= last ? 1 : now());
      timer = setInterval(() => (now() >= last ? stop() : show(now() + 1)), Math.min(Math.max(9000 / last, 80), 500));
    }
    const toggle = () => (timer === null ? play() : stop());
    const move = (by) => { stop(); show(now() + by); };
    run.addEventListener("click", toggle);
    find("back").addEventListener("click", () => move(-1));
    find("on").addEventListener("click", () => move(1));
    slider.addEventListener("input", () => { stop(); show(now()); });
    document.addEventListener("keydown", (event) => {
      const target = event.target;
      const free = target === document.body || target === slider;
      if (!free || event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      if (event.key === " " && (target === slider || inSight(find("player")))) toggle();
      else if (event.key in steps && (target === slider || inSight(find("player")))) move(steps[event.key]);
      else return;
      event.preventDefault();
    });
    const wanted = /^#t=(\d+)$/.exec(location.hash);
    changed.push(() => show(now()));
    show(wanted ? Number(wanted[1]) : last);
  }

  function inSight(element) {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  }

  function drawStrip(counts) {
    const strip = find("strip"), most = Math.max(...counts, 1);
    strip.setAttribute("viewBox", `0 0 ${counts.length} 1`);
    const rects = counts.map((count, i) => {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const height = count / most;
      for (const [key, value] of Object.entries({ x: i + 0.1, y: 1 - height, width: 0.8, height })) rect.setAttribute(key, value);
      return strip.appendChild(rect);
    });
    return (t) => rects.forEach((rect, i) => rect.classList.toggle("now", i === t - 1));
  }

  function addBar(parent, name) {
    const label = parent.appendChild(make("span", "name", name));
    label.title = name;
    const track = parent.appendChild(make("span", "track"));
    const fill = track.appendChild(make("span", "fill"));
    const value = parent.appendChild(make("span", "value"));
    return {
      set(share, first, text) {
        fill.style.width = 100 * Math.min(share, 1) + "%";
        fill.classList.toggle("first", first);
        value.textContent = text;
        label.classList.toggle("bold", first && parent.id === "bars");
      },
      mark(share) {
        track.appendChild(make("span", "mark")).style.left = 100 * share + "%";
      },
    };
  }

  // Where it looks: the input, darkened where the attention is low, or words on a ground as strong as it is.
  function startLook(story) {
    if (!story.attention && !story.picture && !story.tokens.length) return () => {};
    const maps = story.attention ? story.attention.maps.map((map) => ({ overTime: bytes(map.over_time), qann: bytes(map.qann) })) : [];
    const chooser = find("map");
    const chosenMap = () => maps[chooser ? Number(chooser.value) : 0];
    const paint = story.picture ? painter(story) : writer(story);
    let step = 1;
    const draw = () => {
      const map = chosenMap();
      if (!map) return paint("snn", null);
      const places = map.qann.length;
      paint("snn", map.overTime.subarray((step - 1) * places, step * places));
      paint("qann", map.qann);
    };
    if (chooser) chooser.addEventListener("change", draw);
    paint("input", null);
    return (t) => { step = t; draw(); };
  }

  function painter(story) {
    const { height, width, channels } = story.picture;
    const pixels = bytes(story.picture.bytes);
    const [rows, columns] = story.attention ? story.attention.grid : [1, 1];
    return (name, weights) => {
      const canvas = find("picture-" + name);
      if (!canvas) return;
      canvas.width = width;
      canvas.height = height;
      const context = canvas.getContext("2d"), image = context.createImageData(width, height);
      for (let y = 0; y < height; y++) {
        const row = Math.floor((y * rows) / height) * columns;
        for (let x = 0; x < width; x++) {
          const weight = weights === null ? 255 : weights[row + Math.floor((x * columns) / width)];
          const shade = story.shade + ((1 - story.shade) * weight) / 255;
          const from = (y * width + x) * channels, to = (y * width + x) * 4;
          for (let c = 0; c < 3; c++) image.data[to + c] = pixels[from + (channels === 3 ? c : 0)] * shade;
          image.data[to + 3] = 255;
        }
      }
      context.putImageData(image, 0, 0);
    };
  }

  function writer(story) {
    for (const name of ["snn", "qann"]) {
      const line = find("text-" + name);
      for (const token of story.tokens) {
        line.append(token.joined ? "" : "\u200b");  // a line may break here
        line.append(make("span", (token.joined ? "joined " : "") + (token.special ? "special" : ""), token.text));
      }
    }
    return (name, weights) => {
      if (name === "input" || !find("text-" + name)) return;
      const dark = root.dataset.theme === "dark";
      find("text-" + name).querySelectorAll("span").forEach((span, i) => {
        const weight = weights === null ? 0 : weights[i] / 255;
        span.style.backgroundColor = dark ? `rgba(86, 180, 233, ${0.85 * weight})` : `rgba(0, 114, 178, ${0.85 * weight})`;
        span.style.color = weight > (dark ? 0.7 : 0.55) ? (dark ? "#000" : "#fff") : "inherit";
      });
    };
  }

  // ---- charts ----

  function chartColours() {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: value("--grid"), linecolor: value("--rule"), tickcolor: value("--rule") };
    return { ink: value("--ink"), card: value("--card"), rule: value("--rule"), axis };
  }
  const warm = {
    light: ["#ffffff", "#fde3c8", "#f9b27c", "#e8743b", "#b8401f", "#6d1a10"],
    dark: ["#1d2127", "#55301f", "#9c4a21", "#e0702f", "#f9b27c", "#fff0dd"],
  };
  const scale = () => warm[root.dataset.theme].map((colour, i, all) => [i / (all.length - 1), colour]);

  function themed(figure) {
    const { ink, card, rule, axis } = chartColours();
    const layout = {
      ...figure.layout,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
      hoverlabel: { bgcolor: card, bordercolor: rule, font: { color: ink } },
      autosize: !printing,
      width: printing ? paperWidth(figure) : undefined,
      // A finger that scrolls the page must not draw a box on a chart.
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
    const traces = figure.data.map((trace) => (trace.type === "heatmap" ? { ...trace, colorscale: scale() } : trace));
    return [traces, layout];
  }
  // A4 between its margins is 688 px wide; a page does not measure itself again when it is printed.
  const paperWidth = (figure) => (find("chart-" + figure.name).closest(".wide") ? 640 : 296);
  const config = { displayModeBar: false, responsive: true };
  const draw = (figure) => Plotly.react(find("chart-" + figure.name), ...themed(figure), config);
  const figures = data("figures");
  let waiting = [...figures];
  changed.push(() => figures.filter((figure) => !waiting.includes(figure)).forEach(draw));

  // Plotly's script is text until the page stands. From a blob a browser compiles it beside the page.
  function runPlotly() {
    const code = make("script");
    const parts = ["if (!window.Plotly) {", find("plotly").textContent, "}"];  // printing may have run it meanwhile
    return new Promise((resolve, reject) => {
      code.src = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
      code.onload = resolve;
      code.onerror = () => reject(new Error("the chart library could not be run"));
      document.body.append(code);
    });
  }
  function runPlotlyAtOnce() {
    const code = make("script");
    code.textContent = find("plotly").textContent;
    document.body.append(code);
  }

  // The chart nearest to what is seen is drawn next; between two charts the page can scroll and play.
  function distance(figure) {
    const box = find("chart-" + figure.name).getBoundingClientRect();
    return Math.max(box.top - window.innerHeight, -box.bottom, 0);
  }
  async function drawCharts() {
    await runPlotly();
    while (waiting.length) {
      await new Promise((resolve) => setTimeout(resolve));
      if (!waiting.length) break;  // a page that is printed draws all at once
      const next = waiting.reduce((best, figure) => (distance(figure) < distance(best) ? figure : best));
      waiting = waiting.filter((figure) => figure !== next);
      await draw(next);
    }
    root.dataset.ready = "yes";
  }

  // ---- print: on white, everything open ----

  window.addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details")) box.open = true;
    printing = true;
    if (!window.Plotly && figures.length) runPlotlyAtOnce();
    waiting = [];
    setTheme();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    setTheme();
  });

  const story = data("story");
  if (story) startPlayer(story);
  // First the text and the player are painted; a page in the background paints nothing, and does not wait for it.
  const painted = new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve));
    setTimeout(resolve, 300);
  });
  painted.then(drawCharts);
})();
