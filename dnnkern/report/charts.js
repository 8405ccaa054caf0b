// The charts: what each shows of the rows, as Vega-Lite specifications.

const MORE = 20;
const raw = field => ({field, type: "nominal", scale: null, legend: null});
const dots = (size, more = {}) => ({type: "point", filled: true, size, opacity: 0.72, ...more});
const jitter = i => (((i * 2654435761) >>> 0) / 2 ** 32) * 2 - 1; // of a row, the same at every drawing
const byDtype = r => ({color: look().series[dtypeIndex(r.dtype)], shape: SHAPES[dtypeIndex(r.dtype)]});
const rowTip = list => k => ({title: `${list[k].op} ${list[k].problem}`, fields: fieldsOf(list[k]), row: list[k]});
const dtypeLegend = list =>
  DTYPES.filter(name => list.some(r => r.dtype === name))
    .map(name => ({name, ...byDtype({dtype: name})}))
    .concat(list.some(r => !DTYPES.includes(r.dtype)) ? [{name: "other", ...byDtype({})}] : []);

function powers(low, high, base = 2) {
  const first = Math.floor(Math.log(low) / Math.log(base) + 1e-9),
    last = Math.ceil(Math.log(high) / Math.log(base) - 1e-9);
  const found = Array.from({length: last - first + 1}, (_, i) => base ** (first + i));
  return found.length > 9 ? found.filter((_, i) => (first + i) % Math.ceil(found.length / 9) === 0) : found;
}

// The y axis of a list: one name per line, in a column, or above its line where the screen is narrow.
function listAxis(names, width, limit = 320) {
  const narrow = width < NARROW;
  return {
    field: "y",
    type: "quantitative",
    title: null,
    scale: {domain: [names.length - 0.5, narrow ? -0.8 : -0.5], nice: false, zero: false},
    axis: {
      values: names.map((_, i) => i),
      labelExpr: `${JSON.stringify(names)}[datum.value]`,
      grid: true,
      gridOpacity: 0.5,
      labelLimit: narrow ? width - 24 : limit,
      ...(narrow ? {labelAlign: "left", labelPadding: -4, labelOffset: -13, zindex: 1} : {}),
    },
  };
}

// A line of dots for each group, with its quartiles and its mean.
function strip(
  groups,
  width,
  {title, scale, format = "'×'", rule, line, ticks, legend = [], mean = geomean, most = Infinity, summed = () => true, empty},
) {
  const {text, grey} = look(),
    names = [],
    values = [],
    sums = [],
    points = [];
  [...groups].forEach(([name, list], y) => {
    const some = list.filter(summed),
      sorted = ascending((some.length ? some : list).map(p => p.x));
    names.push([name, line(list, width < NARROW)]);
    sums.push({y, low: quantile(sorted, 0.25), high: quantile(sorted, 0.75), mean: mean(sorted), top: y - 0.3, bottom: y + 0.3});
    for (const p of list)
      values.push({
        k: points.push(p) - 1,
        x: Math.min(p.x, most),
        y: y + 0.27 * jitter(p.row?.i ?? points.length),
        color: p.color,
        shape: p.shape,
      });
  });
  if (!values.length) return {panels: [], empty};
  const all = values.map(v => v.x),
    step = 46;
  const domain = scale.domain || [Math.min(rule ?? Infinity, ...all), Math.max(rule ?? -Infinity, ...all)];
  const tickValues = ticks || powers(...domain);
  const x = {
    type: "quantitative",
    title,
    scale: {nice: false, ...scale, domain: scale.type === "log" ? [domain[0] * 0.97, domain[1] * 1.03] : domain},
    axis: {values: tickValues, labelExpr: `format(datum.value, '~g') + ${format}`, labelOverlap: true},
  };
  const y = {
    ...listAxis(names, width, 240),
    scale: {domain: [names.length - 0.5, -0.5], nice: false, zero: false},
    axis: {
      ...listAxis(names, width, 240).axis,
      grid: false,
      labelOffset: -7,
      labelPadding: 8,
      labelAlign: "right",
      labelLimit: width < NARROW ? 128 : 240,
      labelFontSize: width < NARROW ? 11 : 12,
    },
  };
  const spec = size => ({
    width: size,
    height: names.length * step,
    autosize: {type: "fit-x", contains: "padding"},
    data: {values},
    layer: [
      {
        data: {values: sums},
        mark: {type: "rule", strokeWidth: 16, opacity: 0.32, color: grey},
        encoding: {y: {...y, field: "y"}, x: {...x, field: "low"}, x2: {field: "high"}},
      },
      ...(rule == null ? [] : [{data: {values: [{}]}, mark: {type: "rule", strokeWidth: 1.2}, encoding: {x: {datum: rule}}}]),
      {mark: dots(30, {opacity: 0.6}), encoding: {x: {...x, field: "x"}, y, color: raw("color"), shape: raw("shape")}},
      {
        data: {values: sums},
        mark: {type: "rule", strokeWidth: 2.5, color: text},
        encoding: {x: {...x, field: "mean"}, y: {field: "top", type: "quantitative"}, y2: {field: "bottom"}},
      },
    ],
  });
  const beyond = points.filter(p => p.x > most).length;
  return {
    panels: [{spec}],
    legend,
    banded: step,
    note: beyond ? `${plural(beyond, "dot")} beyond ${digits(most)} drawn at the edge.` : "",
    tip: k => points[k].tip || rowTip(rows)(points[k].row.i),
  };
}

const byMean = groups => new Map([...groups].sort((a, b) => geomean(b[1].map(p => p.x)) - geomean(a[1].map(p => p.x))));
const chosenRows = but => rows.filter(r => r.chosen && wanted(r, but));

function moreButton(id, count, shown) {
  if (count <= MORE) return null;
  return make(
    "button",
    {
      type: "button",
      class: "button",
      onclick: () => {
        state.all[id] = !state.all[id];
        rerender(id);
      },
    },
    shown < count ? `Show all ${count}` : `Show ${MORE}`,
  );
}

const chartRatio = {
  id: "ratio",
  has: () => rows.some(r => r.ratio),
  wide: true,
  title: "Speed over the fastest peer",
  about:
    "Each dot is a problem: the time of the fastest of cuDNN, cuBLAS and PyTorch in the same run over that of the algorithm that " +
    "dispatch chose. " +
    "Right of 1× this library is faster. Bar: middle half; line: geometric mean.",
  build(width) {
    const {good, bad} = look();
    const points = chosenRows()
      .filter(r => r.ratio)
      .map(row => ({
        row,
        x: row.ratio,
        family: row.family,
        ...(row.ratio >= 1 ? {color: good, shape: "circle"} : {color: bad, shape: "triangle-down"}),
      }));
    return strip(byMean(grouped(points, p => p.family)), width, {
      title: "times as fast",
      scale: {type: "log", base: 2},
      rule: 1,
      empty: "No peer was measured with these rows.",
      line: (list, narrow) =>
        narrow
          ? `${times(geomean(list.map(p => p.x)))}, ${list.filter(p => p.x >= 1).length}/${list.length}`
          : `${times(geomean(list.map(p => p.x)))}, faster in ${list.filter(p => p.x >= 1).length} of ${list.length}`,
      legend: [
        {name: "faster", color: good, shape: "circle"},
        {name: "slower", color: bad, shape: "triangle-down"},
      ],
    });
  },
};

const chartShare = {
  id: "share",
  has: () => rows.some(r => r.bound),
  title: "Share of the roof",
  about:
    "How much of the measured rate a problem reaches: of the copy rate where bytes take longer, of its dtype's arithmetic where " +
    "operations do. Line: median.",
  build(width) {
    const {good, bad} = look(),
      styles = {memory: {color: good, shape: "circle"}, arithmetic: {color: bad, shape: "square"}};
    const points = chosenRows()
      .filter(r => r.roof && r.bound)
      .map(row => ({row, x: 100 * row.roof, ...styles[row.bound]}));
    const median = list => quantile(ascending(list), 0.5);
    const groups = new Map(
      [...grouped(points, p => p.row.family)].sort((a, b) => median(b[1].map(p => p.x)) - median(a[1].map(p => p.x))),
    );
    return strip(groups, width, {
      title: "% of the roof",
      format: "' %'",
      scale: {domain: [0, 125]},
      most: 125,
      rule: 100,
      ticks: [0, 25, 50, 75, 100, 125],
      mean: median,
      line: (list, narrow) => `${digits(median(list.map(p => p.x)), 2)} %${narrow ? "" : ", median"} of ${list.length}`,
      legend: [
        {name: "limited by memory", ...styles.memory},
        {name: "limited by arithmetic", ...styles.arithmetic},
      ],
    });
  },
};

const chartRegret = {
  id: "regret",
  has: () => rows.some(r => r.regret),
  title: "Regret of the choice",
  about:
    "Time of the algorithm that the estimates choose over the best measured one in the same run; 1 where they are right. Line: " +
    "geometric mean.",
  build(width) {
    const {good, bad} = look();
    const points = rows
      .filter(r => r.regret && wanted(r))
      .map(row => ({row, x: row.regret, ...(row.regret > 1.05 ? {color: bad, shape: "triangle-up"} : {color: good, shape: "circle"})}));
    const groups = new Map([...byMean(grouped(points, p => p.row.family))]);
    return strip(groups, width, {
      title: "times the best time",
      scale: {type: "log", base: 2, domain: [1, 2]},
      most: 2,
      ticks: [1, 1.1, 1.25, 1.5, 2],
      line: (list, narrow) =>
        `${digits(geomean(list.map(p => p.x)), 4)}×` +
        (narrow ? "" : `, the best in ${list.filter(p => p.x < 1.0005).length} of ${list.length}`),
      legend: [
        {name: "within 5 % of the best", color: good, shape: "circle"},
        {name: "beyond", color: bad, shape: "triangle-up"},
      ],
    });
  },
};

// The operation that the chart of algorithms shows: what is asked for, if it has rows, else the one with most of them.
function operations() {
  const counts = [
    ...grouped(
      rows.filter(r => r.ok && wanted(r)),
      r => r.op,
    ),
  ].map(([op, list]) => [op, new Set(list.map(r => r.problem)).size]);
  return counts.sort((a, b) => a[0].localeCompare(b[0]));
}

const chartAlgorithms = {
  id: "algorithms",
  has: () => rows.length > 0,
  wide: true,
  title: "Time of every algorithm and peer",
  about: "One line per problem of an operation, the longest first. A ring marks what dispatch chose; upright bars are peers.",
  controls() {
    this.select = make("select", {
      "aria-label": "Operation",
      onchange: event => {
        state.op = event.target.value;
        writeHash();
        rerender("algorithms");
      },
    });
    const scale = make(
      "select",
      {
        onchange: event => {
          state.relative = event.target.value === "best";
          rerender("algorithms");
        },
      },
      make("option", {value: "time"}, "microseconds"),
      make("option", {value: "best"}, "over the fastest"),
    );
    return make("div", {class: "bar"}, make("label", {}, "Operation", this.select), make("label", {}, "Scale", scale));
  },
  build(width) {
    const {text, series, grey} = look(),
      known = operations();
    const op = known.some(([name]) => name === state.op)
      ? state.op
      : known.reduce((most, each) => (each[1] > (most?.[1] || 0) ? each : most), null)?.[0];
    this.select.replaceChildren(
      ...known.map(([name, count]) => make("option", {value: name, selected: name === op}, `${name} (${count})`)),
    );
    const list = rows.filter(r => r.ok && r.op === op && wanted(r));
    if (!list.length) return {panels: []};
    const problems = [...grouped(list, r => r.problem)]
      .map(([problem, some]) => [problem, some, Math.min(...some.map(r => r.time_us))])
      .sort((a, b) => b[2] - a[2]);
    const shown = state.all.algorithms ? problems : problems.slice(0, MORE),
      best = new Map();
    for (const [, some] of shown)
      for (const r of some)
        if (!r.peer) best.set(r.algo, (best.get(r.algo) || 0) + (some.every(o => o.peer || o.time_us >= r.time_us) ? 1000 : 1));
    const algos = [...best].sort((a, b) => b[1] - a[1]).map(([name]) => name),
      peers = [...new Set(shown.flatMap(([, some]) => some.filter(r => r.peer).map(r => r.algo)))].sort().reverse();
    const style = r =>
      r.peer
        ? {color: text, shape: [BAR, "cross", "diamond", "triangle-down"][peers.indexOf(r.algo) % 4]}
        : algos.indexOf(r.algo) < 7
          ? {color: series[algos.indexOf(r.algo)], shape: SHAPES[algos.indexOf(r.algo)]}
          : {color: grey, shape: "triangle-left"};
    const relative = state.relative,
      far = 8; // times the fastest: what is slower is drawn at the edge
    const place = (r, some) => (relative ? Math.min(far, r.time_us / Math.min(...some.map(o => o.time_us))) : r.time_us);
    const values = shown.flatMap(([, some], y) =>
      some.map(r => ({k: r.i, x: place(r, some), y, chosen: r.chosen, size: r.peer ? 200 : 60, ...style(r)})),
    );
    const names = shown.map(([problem]) => problem),
      step = width < NARROW ? 42 : 24;
    const margin = relative ? 1.04 : 1.15;
    const domain = [Math.min(...values.map(v => v.x)) / margin, Math.max(...values.map(v => v.x)) * margin];
    const ticks = relative ? [1, 1.1, 1.25, 1.5, 2, 3, 4, 6, far] : powers(...domain, 10).flatMap(p => [p, 2 * p, 5 * p]);
    const x = {
      field: "x",
      type: "quantitative",
      title: relative ? "times the fastest" : "microseconds",
      scale: {type: "log", domain, nice: false},
      axis: {values: ticks, format: relative ? "~g" : "~s", orient: "top", labelOverlap: true},
    };
    const y = listAxis(names, width, 380);
    return {
      banded: step,
      tip: rowTip(rows),
      note: relative && values.some(v => v.x === far) ? `What takes ${far} times the fastest or more is drawn at the edge.` : "",
      more: moreButton("algorithms", problems.length, shown.length),
      legend: [
        ...algos.slice(0, 7).map((name, n) => ({name, color: series[n], shape: SHAPES[n]})),
        ...(algos.length > 7 ? [{name: `${algos.length - 7} more`, color: grey, shape: "triangle-left"}] : []),
        ...peers.map(name => ({name: `${name} (peer)`, ...style({peer: true, algo: name})})),
        {name: "chosen", color: text, shape: "circle", hollow: true},
      ],
      panels: [
        {
          spec: size => ({
            width: size,
            height: names.length * step,
            autosize: {type: "fit-x", contains: "padding"},
            data: {values},
            layer: [
              {
                mark: dots(60, {opacity: 0.85}),
                encoding: {
                  x,
                  y,
                  color: raw("color"),
                  shape: raw("shape"),
                  size: {field: "size", type: "quantitative", scale: null, legend: null},
                },
              },
              {
                transform: [{filter: "datum.chosen"}, {calculate: "datum.x", as: "at"}],
                mark: {type: "point", filled: false, size: 210, strokeWidth: 1.8, color: text},
                encoding: {x: {...x, field: "at"}, y},
              },
            ],
          }),
        },
      ],
    };
  },
};
