// The sections of the page of `lockstep report`, from the JSON in #data. page_charts.js comes before it.

const { runs } = JSON.parse(document.getElementById("data").textContent);
const RUN_COLOR = ["var(--one)", "var(--other)"];

// --- sections

function card(title, ...content) {
  return element("div", { class: "card" }, element("h3", {}, title), ...content);
}

function legend(items) {
  return element(
    "div",
    { class: "legend" },
    ...items.map(({ name, color, kind }) => element("span", { class: kind ?? "", style: { "--swatch": color } }, name)),
  );
}

function runLegend() {
  return runs.length < 2
    ? null
    : legend(runs.map((run, i) => ({ name: run.name, color: RUN_COLOR[i], kind: i > 0 ? "run dashed" : "run" })));
}

// A chart with a line for each run. `pick(run)` returns { step, value } or null.
function comparison(title, pick, format, from_zero) {
  const lines = [];
  runs.forEach((run, i) => {
    const picked = pick(run);
    if (picked) {
      lines.push({ ...picked, name: runs.length > 1 ? run.name : title, color: RUN_COLOR[i], dashed: i > 0 });
    }
  });
  const drawn = lineChart(lines, format, from_zero);
  return drawn ? card(title, runLegend(), drawn) : null;
}

function section(title, intro, ...content) {
  const there = content.filter((item) => item !== null);
  if (there.length === 0) {
    return [];
  }
  return [
    element("h2", {}, title),
    ...(intro ? [element("p", { class: "quiet small" }, intro)] : []),
    ...there,
  ];
}

function statusOf(run) {
  if (run.flight && run.status !== "finished") {
    return element("span", { class: "status bad" }, "failed");
  }
  if (run.status === "finished") {
    return element("span", { class: "status good" }, "finished");
  }
  if (run.status !== "") {
    return element("span", { class: "status bad" }, run.status);
  }
  return element("span", { class: "status bad" }, "no end recorded: still running, killed, or end_training() was not called");
}

function header() {
  const parts = [];
  runs.forEach((run, i) => {
    parts.push(element("h1", {}, i === 0 ? run.name : `against ${run.name}`));
    const facts = [];
    if (run.processes !== null) {
      facts.push(`${count(run.processes)} process${run.processes === 1 ? "" : "es"}`);
    }
    if (run.starts > 1) {
      facts.push(`started ${count(run.starts)} times`);
    }
    parts.push(element("p", { class: "quiet" }, statusOf(run), ...facts.map((fact) => ` · ${fact}`)));
  });
  return element("header", {}, ...parts);
}

function tiles() {
  const items = [
    ["updates", (run) => run.updates, (value) => count(value)],
    ["time", (run) => run.seconds, duration],
    ["samples per second", (run) => run.samples_per_second, short],
    ["time of a step", (run) => (run.steps_per_second ? 1 / run.steps_per_second : null), duration],
    ["loss (last tenth)", (run) => run.loss, short],
    ["of the time is communication", (run) => shareOf(run, "communication"), percent],
  ];
  const known = items.filter(([, pick]) => runs.some((run) => (pick(run) ?? null) !== null));
  return element(
    "div",
    { class: "tiles" },
    ...known.map(([label, pick, format]) => {
      const [value, against] = runs.map((run) => pick(run) ?? null);
      const text = (number) => (number === null ? "–" : format(number));
      return element(
        "div",
        { class: "card tile" },
        element("div", { class: "value" }, text(value)),
        element("div", { class: "label" }, label),
        runs.length < 2
          ? null
          : element("div", { class: "against" }, `against ${text(against)}${change(value, against)}`),
      );
    }),
  );
}

function change(value, against) {
  if (value === null || against === null || against === undefined || against === 0) {
    return "";
  }
  const part = (value - against) / Math.abs(against);
  return ` (${part >= 0 ? "+" : "−"}${Math.abs(100 * part).toFixed(1)} %)`;
}

function shareOf(run, part) {
  const all = run.split.reduce((sum, rank) => sum + rank.seconds, 0);
  return all > 0 ? run.split.reduce((sum, rank) => sum + rank.parts[part], 0) / all : null;
}

function failure(run) {
  const { flight } = run;
  if (!flight) {
    return [];
  }
  const ranks = flight.ranks.map((rank) =>
    element(
      "details",
      flight.ranks.length <= 4 ? { open: "" } : {},
      element("summary", {}, `rank ${rank.rank}: ${rank.doing}`),
      rank.operations.length === 0
        ? element("p", { class: "quiet small" }, "no operation recorded")
        : element(
            "div",
            { class: "scroll" },
            table(
              ["operation", "step", "what", "state", "seconds", "ago"],
              rank.operations.map((row) => ({
                cells: [count(row.number), count(row.step), row.what, row.state, duration(row.seconds), duration(row.ago)],
                kind: row.state === "done" ? "" : "failed",
              })),
              [0, 1, 4, 5],
              "narrow",
            ),
          ),
    ),
  );
  return [
    element("h2", {}, runs.length > 1 ? `End of the flight recorder: ${run.name}` : "End of the flight recorder"),
    element(
      "div",
      { class: "card failure" },
      element("p", { class: "status" }, flight.why),
      element("p", { class: "quiet small" }, `${flight.time}; all operations: lockstep flight ${flight.path}`),
      ...ranks,
    ),
  ];
}

function table(heads, rows, numbers = [], kindOfTable = "") {
  const kind = (i) => (numbers.includes(i) ? "number" : i > 0 ? "value" : "");
  return element(
    "table",
    { class: kindOfTable },
    element("thead", {}, element("tr", {}, ...heads.map((head, i) => element("th", { class: kind(i) }, head)))),
    element(
      "tbody",
      {},
      ...rows.map((row) =>
        element("tr", { class: row.kind ?? "" }, ...row.cells.map((cell, i) => element("td", { class: kind(i) }, cell))),
      ),
    ),
  );
}

function split(run) {
  if (run.split.length === 0) {
    return null;
  }
  const perStep = (rank, part) => (part ? rank.parts[part] : rank.seconds) / Math.max(1, rank.steps);
  const longest = Math.max(...run.split.map((rank) => perStep(rank)));
  const used = PARTS.filter((part) => run.split.some((rank) => rank.parts[part] > 0));
  const bars = run.split.map((rank) =>
    element(
      "div",
      { class: "bar" },
      element("span", {}, `rank ${rank.rank}`),
      element(
        "span",
        { class: "track" },
        ...used.map((part) =>
          element("i", {
            title: `${part}: ${duration(perStep(rank, part))}`,
            style: { width: `${(100 * perStep(rank, part)) / (longest || 1)}%`, background: PART_COLOR[part] },
          }),
        ),
      ),
      element("span", { class: "number" }, duration(perStep(rank))),
    ),
  );
  const rows = run.split.map((rank) => ({
    cells: [
      `${rank.rank}`,
      rank.host,
      ...used.map((part) => `${duration(perStep(rank, part))} (${percent(rank.seconds > 0 ? rank.parts[part] / rank.seconds : 0)})`),
      duration(rank.longest),
    ],
  }));
  const numbers = [0, ...used.map((_, i) => i + 2), used.length + 2];
  return card(
    runs.length > 1 ? `Mean step by rank: ${run.name}` : "Mean step by rank",
    legend(used.map((part) => ({ name: part, color: PART_COLOR[part] }))),
    element("div", { class: "bars" }, ...bars),
    element("div", { class: "scroll" }, table(["rank", "host", ...used, "longest step"], rows, numbers, "narrow")),
    between(run),
  );
}

function between(run) {
  const all = PARTS.filter((part) => run.between && run.between[part] > 0);
  if (all.length === 0) {
    return null;
  }
  const texts = all.map((part) => `${part === "other" ? "start, evaluation and others" : part} ${duration(run.between[part])}`);
  return element("p", { class: "quiet small", style: { "margin-top": "10px" } }, `Between steps, on rank ${run.split[0].rank}: ${texts.join(", ")}.`);
}

function memory() {
  const lines = [];
  for (const [i, run] of runs.entries()) {
    for (const rank of run.memory) {
      for (const [kind, name] of [["process", "process"], ["device", "device, peak"]]) {
        if (rank[kind].some((value) => value > 0)) {
          lines.push({
            name: `${runs.length > 1 ? `${run.name}, ` : ""}rank ${rank.rank}, ${name}`,
            color: colorOf(i, rank.rank, run.memory.length, kind),
            dashed: i > 0,
            step: rank.step,
            value: rank[kind].map((value) => (value > 0 ? value : null)),
          });
        }
      }
    }
  }
  const drawn = lineChart(lines, bytes, true);
  if (!drawn) {
    return null;
  }
  const items = lines.length <= 16 ? lines : [];
  return card("Memory of each process", legend(items.map((line) => ({ ...line, kind: line.dashed ? "run dashed" : "run" }))), drawn);
}

function colorOf(run, rank, ranks, kind) {
  const hue = run === 0 ? 214 : 22;
  const turn = ranks > 1 ? (rank / ranks) * 110 : 0;
  return `hsl(${hue + turn + (kind === "device" ? 150 : 0)} 65% 55%)`;
}

// A table of names and values of all runs; rows that differ are bold.
function settings(title, pick, absent) {
  const maps = runs.map((run) => new Map(pick(run)));
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  if (names.length === 0) {
    return card(title, element("p", { class: "quiet small" }, absent));
  }
  const rows = names.map((name) => {
    const values = maps.map((map) => map.get(name) ?? "–");
    return { cells: [name, ...values], kind: new Set(values).size > 1 ? "differs" : "" };
  });
  return card(title, element("div", { class: "scroll" }, table(["", ...runs.map((run) => (runs.length > 1 ? run.name : ""))], rows, [], "names")));
}

function notes() {
  const all = [...new Set(runs.flatMap((run) => run.notes))];
  if (all.length === 0) {
    return [];
  }
  return [
    element("h2", {}, "Absent"),
    element("div", { class: "card notice" }, element("ul", {}, ...all.map((note) => element("li", {}, note)))),
  ];
}

function curves() {
  const names = [...new Set(runs.flatMap((run) => run.curves.map((curve) => curve.name)))];
  return names.map((name) => comparison(name, (run) => run.curves.find((curve) => curve.name === name) ?? null, short));
}

function grid(...cards) {
  const there = cards.filter((item) => item !== null);
  return there.length === 0 ? null : element("div", { class: "grid" }, ...there);
}

const ofSeries = (key) => (run) => (run.series.step.length > 0 ? { step: run.series.step, value: run.series[key] } : null);
const stacks = runs.map((run) => {
  const drawn = stackChart(run.series);
  const used = PARTS.filter((part) => run.series.parts[part].some((value) => value > 0));
  const title = runs.length > 1 ? `Time of a step: ${run.name}` : "Time of a step, mean over ranks";
  return drawn ? card(title, legend(used.map((part) => ({ name: part, color: PART_COLOR[part] }))), drawn) : null;
});

document.getElementById("page").replaceChildren(
  header(),
  tiles(),
  ...runs.flatMap(failure),
  ...section(
    "Loss and learning rate",
    null,
    grid(
      comparison("Loss, mean over ranks", ofSeries("loss"), short),
      comparison("Learning rate", ofSeries("lr"), short, true),
    ),
  ),
  ...section(
    "Throughput",
    null,
    grid(
      comparison("Samples per second, all ranks", ofSeries("samples_per_second"), short, true) ??
        comparison("Steps per second", ofSeries("steps_per_second"), short, true),
      ...stacks,
    ),
  ),
  ...section(
    "Where a step's time goes",
    "Compute is forward, backward and optimizer. Forward has all of the loop's body that is nothing else; communication is the time in which a rank waits for others or exchanges data with them; other is mostly evaluation.",
    grid(...runs.map(split)),
  ),
  ...section("Memory", null, grid(memory())),
  ...section("Logged values", null, grid(...curves())),
  ...section(
    "Configuration and environment",
    null,
    grid(
      settings("Configuration", (run) => run.config, "None is recorded: pass it to Accelerator::init_trackers."),
      settings("Environment", (run) => run.environment, "None is recorded: see Absent, below."),
    ),
  ),
  ...notes(),
  element("footer", {}, "Made by lockstep report. This page loads nothing from the network."),
);
