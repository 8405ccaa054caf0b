// The charts of what is not a row of one algorithm: history, programs, graphs, the host, and two sets compared.

const chartHistory = {
  id: "history",
  has: () => data.history.length > 0,
  wide: true,
  title: "History over commits",
  about:
    "Speed of what dispatch chose, relative to the first measurement of the problem. Thin lines are problems; the thick one is their " +
    "geometric mean, each at its last measurement until then.",
  build() {
    const list = data.history.filter(h => wanted({...h, text: `${h.op} ${h.problem}`.toLowerCase()})),
      {text, good, bad, grey} = look();
    if (!list.length) return {panels: []};
    const order = deviceOf(state.device).commits.map(([name]) => name),
      spread = data.compared?.spread || 0.025;
    const points = list.flatMap((h, p) =>
      h.runs.map(([date, commit, algo, config, time, ratio], n) => {
        const before = n ? h.runs[n - 1][4] : null;
        return {
          h,
          p,
          n,
          date,
          commit,
          algo,
          config,
          time,
          ratio,
          y: h.runs[0][4] / time,
          gain: before && before / time,
          at: order.indexOf(commit),
        };
      }),
    );
    const used = [...new Set(points.map(p => p.commit))].sort((a, b) => order.indexOf(a) - order.indexOf(b));
    const now = list.map(() => 1);
    const chain = used.map(commit => {
      for (const p of points) if (p.commit === commit) now[p.p] = p.y;
      return {commit, y: geomean(now)};
    });
    const style = p =>
      p.gain == null || Math.abs(p.gain - 1) <= spread
        ? {color: grey, shape: "circle"}
        : p.gain > 1
          ? {color: good, shape: "triangle-up"}
          : {color: bad, shape: "triangle-down"};
    const values = points.map((p, k) => ({k, p: p.p, commit: p.commit, y: p.y, ...style(p)}));
    const ys = [
      Math.min(1, ...values.map(v => v.y), ...chain.map(c => c.y)) * 0.95,
      Math.max(1, ...values.map(v => v.y), ...chain.map(c => c.y)) * 1.05,
    ];
    const x = {
      field: "commit",
      type: "ordinal",
      sort: null,
      scale: {domain: used},
      title: "commit, in the order of measurement",
      axis: {labelAngle: -60, grid: false, labelOverlap: true, labelFontSize: 11},
    };
    const y = {
      field: "y",
      type: "quantitative",
      title: "speed over the first",
      scale: {type: "log", base: 2, domain: ys, nice: false},
      axis: {values: powers(...ys), labelExpr: "format(datum.value, '~g') + '×'"},
    };
    return {
      legend: [
        {name: "faster than in the run before", color: good, shape: "triangle-up"},
        {name: "slower", color: bad, shape: "triangle-down"},
        {name: `within ${percent(spread)}`, color: grey, shape: "circle"},
        {name: "geometric mean", color: text, line: true},
      ],
      note: `${plural(list.length, "problem")} measured at several commits.`,
      tip: k => {
        const p = points[k];
        return {
          title: `${p.h.op} ${p.h.problem}`,
          row: (byProblem.get(problemKey(p.h)) || [])[0],
          fields: [
            ["commit", `${p.commit}, ${p.date.replace("T", " ")}`],
            ["algorithm", named(p)],
            ["time", microseconds(p.time)],
            ["over the first", times(p.y)],
            ["over the run before", times(p.gain)],
            ["over the fastest peer", times(p.ratio)],
          ].filter(([, v]) => v),
        };
      },
      panels: [
        {
          spec: width => ({
            width,
            height: 360,
            autosize: {type: "fit-x", contains: "padding"},
            data: {values},
            layer: [
              {mark: {type: "line", strokeWidth: 1, opacity: 0.35, color: grey}, encoding: {x, y, detail: {field: "p"}}},
              {data: {values: chain}, mark: {type: "line", strokeWidth: 3, color: text}, encoding: {x, y}},
              {mark: dots(40), encoding: {x, y, color: raw("color"), shape: raw("shape")}},
            ],
          }),
        },
      ],
    };
  },
};

// Lines of a list with a few dots each.
function list(names, points, width, {title, scale, rule, format, ticks, step}) {
  const all = points.map(p => p.x),
    low = Math.min(rule ?? Infinity, ...all),
    high = Math.max(rule ?? -Infinity, ...all);
  const x = {
    field: "x",
    type: "quantitative",
    title,
    scale: {...scale, domain: [low / 1.12, high * 1.12], nice: false},
    axis: {values: ticks?.(low, high), labelExpr: format, orient: "top", labelOverlap: true},
  };
  const y = listAxis(names, width, 340),
    values = points.map((p, k) => ({k, x: p.x, y: p.y, color: p.color, shape: p.shape}));
  return {
    banded: step,
    panels: [
      {
        spec: size => ({
          width: size,
          height: names.length * step,
          autosize: {type: "fit-x", contains: "padding"},
          layer: [
            ...(rule == null
              ? []
              : [{data: {values: [{}]}, mark: {type: "rule", strokeWidth: 1.2}, encoding: {x: {datum: rule, type: "quantitative"}}}]),
            {data: {values}, mark: dots(80, {opacity: 0.9}), encoding: {x, y, color: raw("color"), shape: raw("shape")}},
          ],
        }),
      },
    ],
  };
}

const chartPrograms = {
  id: "programs",
  has: () => data.programs.length > 0,
  wide: true,
  title: "Whole PyTorch programs",
  about: "Steps per second over those of PyTorch as it is (1×), the same program in turns in one process.",
  build(width) {
    const [found, note] = ofDevice(data.programs),
      {good, bad} = look(),
      shown = found.filter(hasWords);
    if (!shown.length) return {panels: [], note};
    shown.sort((a, b) => a.way.localeCompare(b.way) * -1 || a.problem.localeCompare(b.problem));
    const ours = {color: good, shape: "circle"},
      inductor = {color: bad, shape: "square"};
    const points = shown.flatMap((row, y) => [
      {row, y, x: row.eager / row.ours, ...ours},
      ...(row.inductor ? [{row, y, x: row.eager / row.inductor, ...inductor}] : []),
    ]);
    const names = shown.map(r => `${r.problem}, ${r.way}${r.how ? ` (${r.how})` : ""}`);
    return {
      ...list(names, points, width, {
        title: "times as fast as PyTorch as it is",
        scale: {type: "log", base: 2},
        rule: 1,
        format: "format(datum.value, '~g') + '×'",
        ticks: () => [0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4],
        step: width < NARROW ? 42 : 26,
      }),
      note,
      legend: [
        {name: "dnnkern", ...ours},
        {name: "Inductor", ...inductor},
      ],
      tip: k => {
        const {row} = points[k];
        return {
          title: names[points[k].y],
          fields: [
            ["dnnkern", `${digits(row.ours)} ms`],
            ["Inductor", row.inductor && `${digits(row.inductor)} ms`],
            ["PyTorch as it is", `${digits(row.eager)} ms`],
            ["over PyTorch", times(row.eager / row.ours)],
            ["over Inductor", row.inductor && times(row.inductor / row.ours)],
            ["device", row.device],
            ["commit", `${row.commit}, ${row.date.replace("T", " ")}`],
          ].filter(([, v]) => v),
        };
      },
    };
  },
};

const chartGraphs = {
  id: "graphs",
  has: () => data.graphs.length > 0,
  title: "Operation graphs",
  about:
    "Each dot is a graph of dnnkern.graph, beside the same by torch.compile and by PyTorch's functions one by one. Bar and line are " +
    "of torch.compile.",
  build(width) {
    const [found, note] = ofDevice(data.graphs),
      {good, grey} = look(),
      shown = found.filter(r => hasWords(r) && (!state.dtype || r.dtype === state.dtype));
    const compiled = {color: good, shape: "circle"},
      eager = {color: grey, shape: "diamond"};
    const points = shown.flatMap((row, i) =>
      [
        ["torch_compile", compiled],
        ["torch", eager],
      ]
        .filter(([name]) => row[name])
        .map(([name, style], n) => ({row: {i: 2 * i + n}, graph: row, x: row[name] / row.graph, way: name, ...style})),
    );
    const groups = grouped(points, p => p.graph.problem.split(" ").find(w => /^[a-z]/i.test(w)));
    for (const p of points)
      p.tip = {
        title: p.graph.problem,
        fields: [
          ["plan", p.graph.plan],
          ["graph", microseconds(p.graph.graph)],
          ["without its functions", microseconds(p.graph.plain)],
          ["torch.compile", microseconds(p.graph.torch_compile)],
          ["PyTorch", microseconds(p.graph.torch)],
          ["device", p.graph.device],
          ["commit", `${p.graph.commit}, ${p.graph.date.replace("T", " ")}`],
        ].filter(([, v]) => v),
      };
    return {
      ...strip(byMean(groups), width, {
        title: "times as fast",
        scale: {type: "log", base: 2},
        rule: 1,
        summed: p => p.way === "torch_compile",
        line: some => {
          const c = some.filter(p => p.way === "torch_compile").map(p => p.x);
          return c.length ? `${times(geomean(c))} torch.compile` : `${times(geomean(some.map(p => p.x)))} PyTorch`;
        },
        legend: [
          {name: "over torch.compile", ...compiled},
          {name: "over PyTorch's functions", ...eager},
        ],
      }),
      note,
    };
  },
};

const chartOverheads = {
  id: "overheads",
  has: () => data.host.length > 0,
  wide: true,
  title: "What the host spends",
  about: "Imports, first calls, choices and cached calls.",
  build(width) {
    const [found, note] = ofDevice(data.host),
      everything = found.filter(hasWords).sort((a, b) => b.us - a.us),
      shown = state.all.overheads ? everything : everything.slice(0, MORE),
      {good} = look();
    if (!shown.length) return {panels: [], note};
    const points = shown.map((row, y) => ({row, y, x: row.us, color: good, shape: "circle"}));
    return {
      ...list(
        shown.map(r => r.what),
        points,
        width,
        {
          title: "time",
          scale: {type: "log"},
          step: width < NARROW ? 38 : 22,
          format:
            "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' s' : datum.value >= 1e3 ? " +
            "format(datum.value / 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' µs'",
          ticks: (low, high) => powers(low, high, 10),
        },
      ),
      note,
      more: moreButton("overheads", everything.length, shown.length),
      tip: k => {
        const {row} = points[k];
        return {
          title: row.what,
          fields: [
            ["time", microseconds(row.us)],
            ["", row.more],
            ["device", row.device],
            ["commit", `${row.commit}, ${row.date.replace("T", " ")}`],
          ].filter(([, v]) => v),
        };
      },
    };
  },
};

const chartCompared = {
  id: "changes",
  wide: true,
  title: "What changed",
  about: "Speed after over before, of the algorithms that changed by more than the spread.",
  build(width) {
    const {good, bad} = look(),
      family = op => rows.find(r => r.op === op)?.family || "other";
    const points = ["faster", "slower"].flatMap(verdict =>
      data.compared[verdict].map((c, i) => ({
        row: {i},
        x: c.before_us / c.after_us,
        family: family(c.op),
        ...(verdict === "faster" ? {color: good, shape: "triangle-up"} : {color: bad, shape: "triangle-down"}),
        tip: {
          title: `${c.op} ${c.problem}`,
          row: (byProblem.get(problemKey(c)) || [])[0],
          fields: [
            ["algorithm", named(c)],
            ["before", microseconds(c.before_us)],
            ["after", microseconds(c.after_us)],
            ["change", `${c.change > 0 ? "+" : ""}${digits(100 * c.change)} %`],
            ["spread", percent(c.spread)],
          ],
        },
      })),
    );
    return strip(byMean(grouped(points, p => p.family)), width, {
      title: "times as fast",
      scale: {type: "log", base: 2},
      rule: 1,
      line: some => `${some.filter(p => p.x < 1).length} slower, ${some.filter(p => p.x > 1).length} faster`,
      legend: [
        {name: "faster", color: good, shape: "triangle-up"},
        {name: "slower", color: bad, shape: "triangle-down"},
      ],
    });
  },
};

const CHARTS = [
  chartRatio,
  chartRoofline,
  chartAlgorithms,
  chartShare,
  chartRegret,
  chartBandwidth,
  chartEstimate,
  chartHost,
  chartGraphs,
  chartHistory,
  chartPrograms,
  chartOverheads,
];

function rerender(id) {
  for (const figure of figures.values()) if (figure.chart.id === id) render(figure);
}
