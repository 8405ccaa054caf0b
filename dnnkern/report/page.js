// The page around the charts: what was measured, the summary, the filters and the table.

function header() {
  const d = deviceOf(state.device),
    commits = d.commits.map(([name]) => name),
    facts = [
      ["Device", d.name],
      ["Architecture", [d.arch, d.sms && `${d.sms} SMs`].filter(Boolean).join(", ")],
      ["Driver", d.driver],
      ["Power limit", d.power_limit && `${Math.round(d.power_limit)} W`],
      ["Most SM clock", d.clock && `${d.clock} MHz`],
      [
        "Versions",
        Object.entries(d.versions)
          .filter(([, v]) => v && v !== "source")
          .map(([name, v]) => `${name} ${v}`)
          .join(", "),
      ],
      [
        "Measured rates",
        Object.entries(d.roofs)
          .sort((a, b) => (b[0] === "copy") - (a[0] === "copy"))
          .map(([unit, rate]) =>
            unit === "copy"
              ? `copy ${digits(rate / 1e9)} GB/s`
              : `${unit === "fma" ? "float32 FMA" : unit} ${digits(rate / 1e12)} TFLOP/s`,
          )
          .join(", "),
      ],
      [
        "Dates",
        d.first.slice(0, 10) === d.last.slice(0, 10) ? d.first.slice(0, 10) : `${d.first.slice(0, 10)} to ${d.last.slice(0, 10)}`,
      ],
      ["Commits", commits.length > 1 ? `${commits.length}, the last ${commits.filter(c => c !== "unnamed").pop() || ""}` : commits[0]],
    ];
  $("facts").replaceChildren(...facts.filter(([, v]) => v).map(([name, v]) => make("div", {}, make("dt", {}, name), make("dd", {}, v))));
  const measured = new Set(rows.filter(r => r.device === d.name).map(problemKey)).size;
  $("subtitle").textContent = `${plural(measured, "problem")}, ${plural(d.rows + d.other_rows, "row")} on ${d.name}`;
}

// ---- the summary

function tiles() {
  const chosen = rows.filter(r => r.chosen && wanted(r)),
    ratios = chosen.filter(r => r.ratio).map(r => r.ratio),
    regrets = rows.filter(r => r.regret && wanted(r));
  const median = list => quantile(ascending(list), 0.5);
  const memory = chosen.filter(r => r.bound === "memory").map(r => r.roof),
    arithmetic = chosen.filter(r => r.bound === "arithmetic").map(r => r.roof);
  const hosts = ascending(chosen.filter(r => r.host_us).map(r => r.host_us)),
    wrong = rows.filter(r => !r.ok && wanted(r));
  const cards = [
    ratios.length && [
      times(geomean(ratios)),
      "speed over the fastest peer",
      `geometric mean of ${plural(ratios.length, "problem")}, faster in ${percent(ratios.filter(x => x >= 1).length / ratios.length)}`,
    ],
    memory.length && [percent(median(memory)), "of the copy rate", `median of ${plural(memory.length, "problem")} that memory limits`],
    arithmetic.length && [
      percent(median(arithmetic)),
      "of the arithmetic rate",
      `median of ${plural(arithmetic.length, "problem")} that arithmetic limits`,
    ],
    regrets.length && [
      `${digits(geomean(regrets.map(r => r.regret)), 4)}×`,
      "regret of the estimates",
      `geometric mean of ${plural(regrets.length, "problem")}, worst ${times(Math.max(...regrets.map(r => r.regret)))}`,
    ],
    hosts.length && [
      microseconds(quantile(hosts, 0.5)),
      "host time of a call",
      `median; nine of ten within ${microseconds(quantile(hosts, 0.9))}`,
    ],
    [
      String(wrong.length),
      "results not ok",
      wrong.length
        ? `${wrong.filter(r => r.peer).length} of peers, ${wrong.filter(r => !r.peer).length} of ours`
        : "every timed result passed its check",
    ],
  ].filter(Boolean);
  const groups = [
    ...grouped(
      rows.filter(r => r.chosen && wanted(r, "family")),
      r => r.family,
    ),
  ]
    .map(([name, list]) => {
      const known = list.filter(r => r.ratio).map(r => r.ratio);
      return {name, count: list.length, ratio: geomean(known), faster: known.filter(x => x >= 1).length, known: known.length};
    })
    .sort((a, b) => (b.ratio || 0) - (a.ratio || 0));
  const families = make(
    "div",
    {class: "families", role: "group", "aria-label": "Families: speed over the fastest peer"},
    groups.map(g =>
      make(
        "button",
        {
          type: "button",
          class: "family",
          "aria-pressed": String(state.family === g.name),
          onclick: () => {
            state.family = state.family === g.name ? "" : g.name;
            changedFilter();
          },
        },
        make("span", {class: "name", title: g.name}, g.name),
        make("b", {}, g.ratio ? times(g.ratio) : "no peer"),
        g.known ? make("span", {class: "meter", "aria-hidden": "true"}, meter(g.faster / g.known)) : null,
        make("span", {class: "small"}, g.known ? `faster in ${g.faster} of ${g.known}` : plural(g.count, "problem")),
      ),
    ),
  );
  const slowest = chosen
    .filter(r => r.ratio && r.ratio < 1)
    .sort((a, b) => a.ratio - b.ratio)
    .slice(0, 6)
    .map(r => [times(r.ratio), r]);
  const regretted = regrets
    .filter(r => r.regret > 1.005)
    .sort((a, b) => b.regret - a.regret)
    .slice(0, 6)
    .map(r => [times(r.regret), r]);
  $("tiles").replaceChildren(
    make("h2", {class: "unseen"}, "Summary"),
    make(
      "div",
      {class: "tiles"},
      cards.map(([value, name, about]) =>
        make("div", {class: "tile"}, make("b", {}, value), make("div", {}, name), make("span", {}, about)),
      ),
    ),
    families,
    make("div", {class: "lists"}, worst("Slowest against a peer", slowest), worst("Largest regret", regretted)),
  );
}

function meter(part) {
  const bar = make("i");
  bar.style.width = `${100 * part}%`;
  return bar;
}

function worst(title, list) {
  if (!list.length) return null;
  return make(
    "div",
    {class: "list"},
    make("h3", {}, title),
    make(
      "ol",
      {},
      list.map(([value, r]) =>
        make(
          "li",
          {},
          make(
            "button",
            {type: "button", title: `${r.op} ${r.problem}`, onclick: () => focusProblem(r)},
            make("b", {}, value),
            make("span", {}, `${r.op} ${r.problem} `, make("small", {}, named(r))),
          ),
        ),
      ),
    ),
  );
}

// ---- two sets compared

function compared() {
  const c = data.compared;
  if (!c) return;
  const section = $("compared"),
    bad = c.slower.length + c.wrong.length;
  section.hidden = false;
  section.classList.toggle("failed", bad > 0);
  const change = r => (r.change == null ? r.status.split(":")[0] : `▲ ${digits(100 * r.change)} %`);
  const line = r =>
    make(
      "tr",
      {},
      make("td", {class: "num slower"}, change(r)),
      make("td", {class: "num"}, percent(r.spread)),
      make("td", {class: "num"}, microseconds(r.before_us)),
      make("td", {class: "num"}, microseconds(r.after_us)),
      make("td", {}, r.op),
      make("td", {class: "problem"}, r.problem),
      make("td", {class: "algorithm"}, named(r)),
      make("td", {}, r.called ? "chosen" : ""),
    );
  const names = ["change", "spread", "before", "after", "operation", "problem", "algorithm", ""];
  section.replaceChildren(
    make("h2", {id: "compared-title"}, `${c.after} beside ${c.before}`),
    make(
      "p",
      {class: "about"},
      `${c.slower.length} slower, ${c.faster.length} faster, ${c.wrong.length} no longer ok, of ${c.compared} compared. ` +
        `Spread ${percent(c.spread)}: ` +
        (c.peers ? `what 95 % of ${c.peers} peers differ by, whose code is the same.` : "as given, or the usual one."),
    ),
    bad
      ? make(
          "div",
          {class: "scroll", tabindex: "0", role: "region", "aria-label": "What became slower"},
          make(
            "table",
            {},
            make(
              "thead",
              {},
              make(
                "tr",
                {},
                names.map((name, n) => make("th", {class: n < 4 ? "num" : ""}, name)),
              ),
            ),
            make("tbody", {}, [...c.wrong, ...c.slower].slice(0, 200).map(line)),
          ),
        )
      : null,
  );
  if (c.slower.length + c.faster.length) addChart(chartCompared, section);
}

// ---- filters

function options(select, list, value, all) {
  select.replaceChildren(
    ...(all ? [make("option", {value: ""}, all)] : []),
    ...list.map(([name, text]) => make("option", {value: name}, text)),
  );
  select.value = value;
  if (select.value !== value) select.value = all ? "" : list[0][0];
  return select.value;
}

function filters() {
  state.device = options(
    $("device"),
    data.devices.map(d => [d.name, d.name]),
    state.device,
  );
  const here = rows.filter(r => r.device === state.device && r.chosen),
    count = (key, name) => here.filter(r => r[key] === name).length;
  const listed = key => [...new Set(here.map(r => r[key]))].sort().map(name => [name, `${name} (${count(key, name)})`]);
  state.family = options($("family"), listed("family"), state.family, "all families");
  state.dtype = options($("dtype"), listed("dtype"), state.dtype, "all dtypes");
  $("which").value = state.which;
  if (document.activeElement !== $("words")) $("words").value = state.words;
}

function changedFilter() {
  state.shown = 50;
  filters();
  writeHash();
  header();
  tiles();
  table();
  refresh();
}

function focusProblem(r) {
  hideTip();
  Object.assign(state, {device: r.device, family: "", dtype: "", words: `${r.op} ${r.problem}`, op: r.op, which: "all", shown: 50});
  $("words").value = state.words;
  changedFilter();
  document.getElementById("table").scrollIntoView();
  $("rows").closest(".scroll").focus({preventScroll: true});
}

function footer() {
  const missing = data.files.filter(f => f.drawn < f.rows);
  $("foot").replaceChildren(
    make(
      "p",
      {},
      `Made by dnnkern ${data.dnnkern} on ${data.made.slice(0, 16).replace("T", " ")} UTC from ${plural(data.files.length, "file")}. ` +
        "Times are medians of turns, on inputs that exceed the L2 cache.",
    ),
    make(
      "details",
      {},
      make("summary", {}, `Files (${data.files.length})`),
      make(
        "ul",
        {},
        data.files.map(f =>
          make("li", {}, `${f.file}: ${plural(f.rows, "row")}${f.drawn < f.rows ? `, ${f.rows - f.drawn} without a chart` : ""}`),
        ),
      ),
    ),
    missing.length
      ? make(
          "p",
          {},
          `${plural(
            missing.reduce((sum, f) => sum + f.rows - f.drawn, 0),
            "row",
          )} are of kinds that have no chart here.`,
        )
      : "",
  );
}

// ---- theme, and the start

function theme() {
  document.documentElement.dataset.theme = themeName();
  $("theme").textContent = themeName() === "dark" ? "☀ Light" : "☾ Dark";
  $("theme").setAttribute("aria-label", `Switch to the ${themeName() === "dark" ? "light" : "dark"} theme`);
}

$("theme").addEventListener("click", () => {
  chosenTheme = themeName() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("dnnkern-theme", chosenTheme);
  } catch {
    /* as above */
  }
  theme();
  refresh();
});
systemTheme.addEventListener("change", () => {
  theme();
  refresh();
});
for (const name of ["device", "family", "dtype"])
  $(name).addEventListener("change", event => {
    state[name] = event.target.value;
    changedFilter();
  });
let waiting = 0;
$("words").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    state.words = $("words").value.trim();
    changedFilter();
  }, 200);
});
$("filters").addEventListener("submit", event => event.preventDefault());
$("filters").addEventListener("reset", event => {
  event.preventDefault();
  Object.assign(state, {device: data.devices[0].name, family: "", dtype: "", words: "", op: "", which: "chosen", sort: null, all: {}});
  $("words").value = "";
  changedFilter();
});
$("which").addEventListener("change", event => {
  Object.assign(state, {which: event.target.value, sort: null, shown: 50});
  writeHash();
  table();
});
$("more").addEventListener("click", () => {
  state.shown += 200;
  table();
});
$("save").addEventListener("click", csv);
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => refresh(true), 150);
});
addEventListener("hashchange", () => {
  readHash();
  changedFilter();
});
addEventListener("beforeprint", () => {
  for (const figure of figures.values()) if (figure.stale) render(figure);
});

readHash();
theme();
filters();
header();
tiles();
compared();
for (const chart of CHARTS) if (chart.has()) addChart(chart, $("charts"));
table();
footer();
