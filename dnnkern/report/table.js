// The table of the rows.

const number = (name, key, write) => ({name, key, write: r => write(r[key], r), number: true});
const COLUMNS = [
  {name: "operation", key: "op"},
  {name: "problem", key: "problem", class: "problem"},
  {name: "algorithm", key: "algo", class: "algorithm", write: named},
  {
    name: "mark",
    key: "kind",
    write: r => (r.peer ? "peer" : [r.chosen && "chosen", r.predicted && "estimate"].filter(Boolean).join(", ")),
  },
  number("time µs", "time_us", v => digits(v, 4)),
  number("× peer", "ratio", v => digits(v)),
  number("roof %", "roof", v => (v == null ? "" : (100 * v).toFixed(1))),
  number("TFLOP/s", "tflops", v => (v ? digits(v) : "")),
  number("GB/s", "gbs", v => digits(v)),
  number("regret", "regret", v => (v == null ? "" : v.toFixed(3))),
  number("host µs", "host_us", v => digits(v)),
  number("IQR %", "iqr_us", (v, r) => (v == null || !r.time_us ? "" : ((100 * v) / r.time_us).toFixed(2))),
  number("workspace", "workspace", bytes),
  {name: "status", key: "status"},
  {name: "commit", key: "commit"},
  {name: "date", key: "date", write: r => r.date.replace("T", " ")},
];

function tableRows() {
  const list = rows.filter(r => wanted(r) && (state.which === "all" || (state.which === "wrong" ? !r.ok : r.chosen)));
  const {key, down} = state.sort || (state.which === "chosen" ? {key: "ratio", down: false} : {key: null});
  if (!key) return list;
  const value = r => (key === "iqr_us" ? r.iqr_us / r.time_us : r[key]);
  return list.sort((a, b) => {
    const [x, y] = [value(a), value(b)],
      none = v => v == null || v === "" || Number.isNaN(v);
    if (none(x) || none(y)) return none(x) - none(y);
    return (typeof x === "number" ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
  });
}

function table() {
  const list = tableRows(),
    sort = state.sort || (state.which === "chosen" ? {key: "ratio", down: false} : {});
  const used = COLUMNS.filter(c => c.key !== "status" || list.some(r => !r.ok));
  const again = document.activeElement?.dataset?.key;
  $("rows").replaceChildren(
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        used.map(c =>
          make(
            "th",
            {
              scope: "col",
              class: c.number ? "num" : "",
              "aria-sort": sort.key === c.key ? (sort.down ? "descending" : "ascending") : null,
            },
            make(
              "button",
              {
                type: "button",
                "data-key": c.key,
                onclick: () => {
                  state.sort = {key: c.key, down: sort.key === c.key ? !sort.down : false};
                  table();
                },
              },
              c.name,
              sort.key === c.key ? (sort.down ? " ▼" : " ▲") : "",
            ),
          ),
        ),
      ),
    ),
    make(
      "tbody",
      {},
      list.slice(0, state.shown).map(r => {
        const verdict = verdictOf(r);
        return make(
          "tr",
          {class: r.peer ? "peer" : ""},
          used.map(c =>
            make(
              "td",
              {class: [c.number && "num", c.class].filter(Boolean).join(" ") || null},
              c.write ? c.write(r) : r[c.key],
              c.key === "time_us" && verdict
                ? make(
                    "span",
                    {class: verdict.verdict === "faster" ? "faster" : "slower"},
                    verdict.verdict === "faster" ? " ▼ faster" : ` ▲ ${verdict.verdict}`,
                  )
                : null,
            ),
          ),
        );
      }),
    ),
  );
  if (again) $("rows").querySelector(`[data-key="${again}"]`)?.focus();
  $("count").textContent = `${plural(Math.min(state.shown, list.length), "row")} of ${list.length.toLocaleString("en-US")}`;
  $("more").hidden = state.shown >= list.length;
  if (!list.length) $("rows").append(make("caption", {class: "empty"}, "No such rows with these filters."));
}

function csv() {
  const quote = v => (/[",\n]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  const keys = [...TEXTS, ...NUMBERS],
    lines = [keys.join(","), ...tableRows().map(r => keys.map(key => quote(String(r[key] ?? ""))).join(","))];
  const link = make("a", {
    href: URL.createObjectURL(new Blob([lines.join("\n") + "\n"], {type: "text/csv"})),
    download: "dnnkern-rows.csv",
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
