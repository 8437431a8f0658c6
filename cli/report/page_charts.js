"use strict";
// Elements, numbers and charts of the page of `lockstep report`. Texts of the run are set as text, never as HTML.

const PARTS = ["data", "forward", "backward", "optimizer", "communication", "checkpoint", "other"];
const PART_COLOR = Object.fromEntries(PARTS.map((part) => [part, `var(--${part === "other" ? "rest" : part})`]));

// --- elements

function element(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "style") {
      for (const [name, text] of Object.entries(value)) {
        node.style.setProperty(name, text);
      }
    } else {
      node.setAttribute(key, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  if (text !== undefined) {
    node.textContent = text;
  }
  return node;
}

// --- numbers

function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

function short(value) {
  if (value === null || value === undefined) {
    return "–";
  }
  const size = Math.abs(value);
  if (size >= 1e9) {
    return `${(value / 1e9).toPrecision(3)} G`;
  }
  if (size >= 1e6) {
    return `${(value / 1e6).toPrecision(3)} M`;
  }
  if (size >= 1e4) {
    return count(value);
  }
  if (size !== 0 && size < 1e-4) {
    return value.toExponential(2);
  }
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) {
    return "–";
  }
  if (seconds >= 3600) {
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }
  if (seconds >= 60) {
    return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  }
  if (seconds >= 0.9995 || seconds === 0) {
    return `${Number(seconds.toPrecision(3))} s`;
  }
  if (seconds >= 0.9995e-3) {
    return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  }
  return `${Number((seconds * 1e6).toPrecision(3))} µs`;
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}

function percent(value) {
  return `${(100 * value).toFixed(value < 0.0995 && value > 0 ? 1 : 0)} %`;
}

// Round numbers from `low` to `high`, for an axis; powers of 2 for bytes.
function ticks(low, high, most, format) {
  const raw = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step =
    format === bytes
      ? 2 ** Math.ceil(Math.log2(raw))
      : [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const all = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    all.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return all;
}

// --- charts

const HEIGHT = 220;

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value !== null) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low > high ? null : [low, high];
}

// A chart that is drawn again when its width changes. `draw(width)` returns { svg, read(x) }; read returns
// { x, lines } for the tooltip.
function chart(draw) {
  const box = element("div", { class: "chart" });
  const tip = element("div", { class: "tip" });
  let width = 0;
  let drawn = null;
  const redraw = () => {
    const now = Math.floor(box.clientWidth);
    if (now === width || now < 50) {
      return;
    }
    width = now;
    drawn = draw(width);
    box.replaceChildren(drawn.svg, tip);
  };
  const hide = () => {
    tip.style.visibility = "hidden";
    drawn?.cursor.setAttribute("style", "visibility: hidden");
  };
  box.addEventListener("pointermove", (event) => {
    const at = drawn?.read(event.clientX - box.getBoundingClientRect().left);
    if (!at) {
      hide();
      return;
    }
    drawn.cursor.setAttribute("x1", at.x);
    drawn.cursor.setAttribute("x2", at.x);
    drawn.cursor.setAttribute("style", "visibility: visible");
    tip.replaceChildren(...at.lines.map((line) => element("div", {}, line)));
    tip.style.visibility = "visible";
    tip.style.top = "8px";
    tip.style.left = `${Math.min(Math.max(0, at.x + 12), Math.max(0, width - tip.offsetWidth))}px`;
  });
  box.addEventListener("pointerleave", hide);
  new ResizeObserver(redraw).observe(box);
  return box;
}

// The frame of a chart over steps: axes, scales and an empty drawing.
function frame(width, xs, ys, format) {
  const [x0, x1] = xs[0] === xs[1] ? [xs[0] - 1, xs[1] + 1] : xs;
  let [y0, y1] = ys;
  if (y0 === y1) {
    const margin = Math.abs(y0) * 0.1 || 1;
    [y0, y1] = [y0 - margin, y1 + margin];
  }
  const marks = ticks(y0, y1, 4, format);
  const labels = marks.map(format);
  const left = 10 + 6.8 * Math.max(3, ...labels.map((label) => label.length));
  const area = { left, right: width - 8, top: 8, bottom: HEIGHT - 24 };
  const x = (value) => area.left + ((value - x0) / (x1 - x0)) * (area.right - area.left);
  const y = (value) => area.bottom - ((value - y0) / (y1 - y0)) * (area.bottom - area.top);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  marks.forEach((mark, i) => {
    svg.append(shape("line", { class: "grid-line", x1: area.left, x2: area.right, y1: y(mark), y2: y(mark) }));
    svg.append(shape("text", { x: area.left - 8, y: y(mark) + 4, "text-anchor": "end" }, labels[i]));
  });
  svg.append(shape("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  for (const mark of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
    if (Number.isInteger(mark)) {
      const anchor = x(mark) > area.right - 20 ? "end" : "middle";
      svg.append(shape("text", { x: x(mark), y: HEIGHT - 7, "text-anchor": anchor }, count(mark)));
    }
  }
  const cursor = shape("line", { class: "cursor", y1: area.top, y2: area.bottom, x1: 0, x2: 0 });
  return { svg, cursor, area, x, y, step: (px) => x0 + ((px - area.left) / (area.right - area.left)) * (x1 - x0) };
}

function nearest(steps, step) {
  let best = -1;
  steps.forEach((value, i) => {
    if (best < 0 || Math.abs(value - step) < Math.abs(steps[best] - step)) {
      best = i;
    }
  });
  return best;
}

function path(steps, values, x, y) {
  let d = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null) {
      pen = "M";
      return;
    }
    d += `${pen}${x(steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return d;
}

// Lines over steps. A line: { name, color, dashed, step, value }. Returns null without any value.
function lineChart(lines, format, from_zero = false) {
  const drawable = lines.filter((line) => line.value.some((value) => value !== null));
  if (drawable.length === 0) {
    return null;
  }
  const xs = extent(drawable.flatMap((line) => line.step));
  const ys = extent(drawable.flatMap((line) => line.value));
  if (from_zero) {
    ys[0] = Math.min(0, ys[0]);
  }
  return chart((width) => {
    const { svg, cursor, x, y, step } = frame(width, xs, ys, format);
    for (const line of drawable) {
      const known = line.value.filter((value) => value !== null).length;
      const style = { fill: "none", stroke: line.color, "stroke-width": 1.7, "stroke-linejoin": "round" };
      if (line.dashed) {
        style["stroke-dasharray"] = "5 3";
      }
      svg.append(shape("path", { ...style, d: path(line.step, line.value, x, y) }));
      if (known <= 24) {
        line.value.forEach((value, i) => {
          if (value !== null) {
            svg.append(shape("circle", { cx: x(line.step[i]), cy: y(value), r: 2.6, fill: line.color }));
          }
        });
      }
    }
    svg.append(cursor);
    const read = (px) => {
      const first = drawable[0];
      const at = first.step[nearest(first.step, step(px))];
      const texts = drawable.map((line) => {
        const value = line.value[nearest(line.step, at)];
        return `${line.name}: ${value === null ? "–" : format(value)}`;
      });
      return { x: x(at), lines: [`step ${count(at)}`, ...texts] };
    };
    return { svg, cursor, read };
  });
}

// The time of a step over steps, as stacked areas.
function stackChart(series) {
  const steps = series.step;
  if (steps.length === 0) {
    return null;
  }
  const totals = steps.map((_, i) => PARTS.reduce((sum, part) => sum + (series.parts[part][i] ?? 0), 0));
  // A few long steps (a checkpoint) would flatten all others.
  const sorted = [...totals].sort((one, other) => one - other);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.98)];
  const top = Math.max(usual * 1.15, sorted[sorted.length - 1] > usual * 3 ? 0 : sorted[sorted.length - 1]);
  const xs = [steps[0], steps[steps.length - 1]];
  return chart((width) => {
    const { svg, cursor, area, x, y, step } = frame(width, xs, [0, top || 1], duration);
    let below = steps.map(() => 0);
    for (const part of PARTS) {
      const above = below.map((value, i) => value + (series.parts[part][i] ?? 0));
      const edge = (values) => values.map((value, i) => `${x(steps[i]).toFixed(1)} ${Math.max(area.top, y(value)).toFixed(1)}`);
      const upper = edge(above);
      const lower = edge(below).reverse();
      svg.append(shape("path", { d: `M${upper.join("L")}L${lower.join("L")}Z`, fill: PART_COLOR[part] }));
      below = above;
    }
    svg.append(cursor);
    const read = (px) => {
      const i = nearest(steps, step(px));
      const known = PARTS.filter((part) => (series.parts[part][i] ?? 0) > 0);
      return {
        x: x(steps[i]),
        lines: [
          `step ${count(steps[i])}: ${duration(totals[i])}`,
          ...known.map((part) => `${part}: ${duration(series.parts[part][i])} (${percent(series.parts[part][i] / totals[i])})`),
        ],
      };
    };
    return { svg, cursor, read };
  });
}
