// The data, the filters, and how values and colours are written.
const packed = Uint8Array.from(atob(document.getElementById("data").textContent), c => c.charCodeAt(0));
const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const $ = id => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(c => c != null && c !== false));
  return element;
}

// Rows are stored by column, texts as codes.
const TEXTS = "device family op problem dtype algo config kind status unit bound commit date notes".split(" ");
const NUMBERS = "time_us iqr_us tflops gbs roof ratio host_us estimate_us workspace regret".split(" ");
const rows = Array.from({length: data.rows.count}, (_, i) => {
  const row = {i};
  for (const name of TEXTS) row[name] = data.rows[name].texts[data.rows[name].codes[i]];
  for (const name of NUMBERS) row[name] = data.rows[name][i];
  row.peer = row.kind === "peer";
  row.chosen = row.kind.includes("*");
  row.predicted = row.kind.includes("~");
  row.ok = row.status === "ok";
  row.text = [row.op, row.problem, row.algo, row.config, row.commit, row.status].join(" ").toLowerCase();
  return row;
});
const problemKey = r => `${r.device}\n${r.op}\n${r.problem}`;
const byProblem = Map.groupBy
  ? Map.groupBy(rows, problemKey)
  : rows.reduce((groups, r) => groups.set(problemKey(r), [...(groups.get(problemKey(r)) || []), r]), new Map());
const changed = new Map(); // rows that a comparison found slower or faster
for (const verdict of ["slower", "faster", "wrong"])
  for (const r of (data.compared || {})[verdict] || [])
    changed.set([r.device, r.op, r.problem, r.algo, r.config].join("\n"), {...r, verdict});
const verdictOf = r => changed.get([r.device, r.op, r.problem, r.algo, r.config].join("\n"));

// ---- filters

const state = {device: data.devices[0].name, family: "", dtype: "", words: "", op: "", all: {}, sort: null, which: "chosen", shown: 50};
const deviceOf = name => data.devices.find(d => d.name === name);

function wanted(r, but = "") {
  return (
    r.device === state.device &&
    (but === "family" || !state.family || r.family === state.family) &&
    (!state.dtype || r.dtype === state.dtype) &&
    hasWords(r)
  );
}

function hasWords(r) {
  if (!state.words) return true;
  const text = r.text || [r.op, r.problem, r.plan, r.what, r.commit].join(" ").toLowerCase();
  return state.words
    .toLowerCase()
    .split(/\s+/)
    .every(w => text.includes(w));
}

// Rows of programs, graphs and the host: of the device that is asked for, else of the one with most of them.
function ofDevice(list) {
  const here = list.filter(r => r.device === state.device);
  if (here.length || !list.length) return [here, ""];
  const counts = new Map();
  for (const r of list) counts.set(r.device, (counts.get(r.device) || 0) + 1);
  const most = [...counts].sort((a, b) => b[1] - a[1])[0][0];
  return [list.filter(r => r.device === most), `None on ${state.device}; these are of ${most}.`];
}

function readHash() {
  const known = new URLSearchParams(location.hash.slice(1));
  for (const name of ["device", "family", "dtype", "words", "op", "which"]) if (known.has(name)) state[name] = known.get(name);
  if (!deviceOf(state.device)) state.device = data.devices[0].name;
}

function writeHash() {
  const known = new URLSearchParams();
  for (const name of ["device", "family", "dtype", "words", "op", "which"]) {
    const usual = {device: data.devices[0].name, which: "chosen"}[name] || "";
    if (state[name] && state[name] !== usual) known.set(name, state[name]);
  }
  const hash = known.toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

// ---- texts

const digits = (value, n = 3) => {
  if (value == null) return "";
  const magnitude = Math.floor(Math.log10(Math.abs(value) || 1));
  return magnitude >= n ? Math.round(value).toLocaleString("en-US") : value.toFixed(Math.max(0, n - 1 - Math.max(magnitude, -3)));
};
const microseconds = us =>
  us == null ? "" : us >= 1e6 ? `${digits(us / 1e6)} s` : us >= 1e3 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
const times = ratio => (ratio == null ? "" : `${digits(ratio)}×`);
const percent = (part, n = 2) => (part == null ? "" : `${digits(100 * part, n)}\u00a0%`);
const bytes = n =>
  !n
    ? ""
    : n < 1024
      ? `${n} B`
      : n < 1 << 20
        ? `${digits(n / 1024)} KiB`
        : n < 2 ** 30
          ? `${digits(n / 2 ** 20)} MiB`
          : `${digits(n / 2 ** 30)} GiB`;
const geomean = values => (values.length ? Math.exp(values.reduce((sum, v) => sum + Math.log(v), 0) / values.length) : null);
function quantile(sorted, q) {
  const at = (sorted.length - 1) * q,
    low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}
const ascending = values => [...values].sort((a, b) => a - b);
const named = r => (r.config ? `${r.algo} [${r.config}]` : r.algo);
const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
function grouped(list, key) {
  const groups = new Map();
  for (const each of list) {
    const name = key(each);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(each);
  }
  return groups;
}

// What a reader sees of a row: [name, value] pairs.
function fieldsOf(r) {
  const verdict = verdictOf(r);
  return [
    ["algorithm", named(r)],
    ["", r.peer ? "peer" : r.chosen ? "chosen by dispatch" : r.predicted ? "what the estimates choose" : ""],
    ["status", r.ok ? "" : r.status],
    ["time", r.time_us && `${microseconds(r.time_us)}${r.iqr_us ? `, IQR ${percent(r.iqr_us / r.time_us)}` : ""}`],
    ["over the fastest peer", times(r.ratio)],
    ["TFLOP/s", r.tflops ? digits(r.tflops) : ""],
    ["GB/s", r.gbs ? digits(r.gbs) : ""],
    ["of the roof", r.roof == null ? "" : `${percent(r.roof)}${r.bound ? `, limited by ${r.bound}` : ""}`],
    ["estimate", r.estimate_us && `${microseconds(r.estimate_us)}, ${percent(r.estimate_us / r.time_us)} of the time`],
    ["regret", r.regret && digits(r.regret, 4)],
    ["host time", microseconds(r.host_us)],
    ["workspace", bytes(r.workspace)],
    ["notes", r.notes],
    ["compared", verdict && `${microseconds(verdict.before_us)} to ${microseconds(verdict.after_us)}: ${verdict.verdict}`],
    ["commit", `${r.commit}, ${r.date.replace("T", " ")}`],
  ].filter(([, value]) => value);
}

// ---- colours: the first two are Okabe and Ito's. All of a theme stay apart for colour-blind people: tests/test_report.py computes by how
// much. Every series has a shape of its own too.

const THEMES = {
  light: {
    page: "#ffffff",
    text: "#1f2328",
    muted: "#59636e",
    line: "#d1d9e0",
    grey: "#7d858d",
    good: "#0072b2",
    bad: "#d55e00",
    series: ["#0072b2", "#d55e00", "#08562f", "#b8558c", "#7a450b", "#17a1bd", "#340655", "#4e565b"],
  },
  dark: {
    page: "#0d1117",
    text: "#e6edf3",
    muted: "#9aa4ae",
    line: "#2a313b",
    grey: "#9aa0a6",
    good: "#56b4e9",
    bad: "#f0883e",
    series: ["#56b4e9", "#f0883e", "#37f29c", "#fbb3cf", "#f9f823", "#45799f", "#a654e9", "#838587"],
  },
};
const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"];
const BAR = "M-0.2,-1L0.2,-1L0.2,1L-0.2,1Z"; // Vega's own stroke has no area to fill
const DTYPES = ["bfloat16", "float16", "float32", "float8_e4m3fn", "float64", "int8", "float8_e5m2"];
const dtypeIndex = name => (DTYPES.includes(name) ? DTYPES.indexOf(name) : 7);

const systemTheme = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("dnnkern-theme");
} catch {
  /* storage is off for files in some browsers */
}
const themeName = () => chosenTheme || (systemTheme.matches ? "dark" : "light");
const look = () => THEMES[themeName()];

function legendOf(items) {
  if (!items.length) return null;
  return make(
    "ul",
    {class: "legend"},
    items.map(item => {
      const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      for (const [name, value] of Object.entries({width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true"}))
        icon.setAttribute(name, value);
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", item.line ? "M-8,0L8,0" : shapePath(item.shape));
      path.setAttribute("fill", item.hollow || item.line ? "none" : item.color);
      path.setAttribute("stroke", item.color);
      path.setAttribute("stroke-width", item.hollow || item.line ? 2 : 0.5);
      if (item.dash) path.setAttribute("stroke-dasharray", item.dash);
      icon.append(path);
      return make("li", {}, icon, item.name);
    }),
  );
}

function shapePath(shape) {
  return {
    circle: "M5,0A5,5,0,1,1,-5,0A5,5,0,1,1,5,0",
    square: "M-4.5,-4.5H4.5V4.5H-4.5Z",
    "triangle-up": "M0,-5.5L5.5,4.5L-5.5,4.5Z",
    diamond: "M0,-6L5,0L0,6L-5,0Z",
    cross: "M-5,-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z",
    "triangle-down": "M0,5.5L5.5,-4.5L-5.5,-4.5Z",
    "triangle-right": "M5.5,0L-4.5,-5.5L-4.5,5.5Z",
    "triangle-left": "M-5.5,0L4.5,-5.5L4.5,5.5Z",
    [BAR]: "M-1.5,-7H1.5V7H-1.5Z",
  }[shape];
}
