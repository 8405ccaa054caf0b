// Charts of one number over another: rooflines, bandwidth, estimates, host time.

const chartRoofline = {
  id: "roofline",
  has: () => rows.some(r => r.tflops && r.gbs),
  wide: true,
  title: "Rooflines",
  about:
    "Rate of arithmetic over arithmetic intensity, by family. Slope: the measured copy rate; flat: the measured rates of the dtypes' " +
    "tensor cores and of float32's multiply-adds.",
  build(width) {
    const device = deviceOf(state.device),
      list = chosenRows().filter(r => r.tflops > 0 && r.gbs > 0),
      {text, muted} = look();
    if (!list.length || !device.roofs.copy) return {panels: []};
    const intensity = r => (r.tflops * 1e3) / r.gbs,
      copy = device.roofs.copy / 1e12;
    const top = Math.max(
      ...Object.entries(device.roofs)
        .filter(([unit]) => unit !== "copy")
        .map(([, rate]) => rate / 1e12),
      ...list.map(r => r.tflops),
    );
    const knee = top / copy,
      xs = [Math.min(knee / 50, ...list.map(intensity)) / 1.5, Math.max(knee * 3, ...list.map(intensity)) * 1.5];
    const ys = [Math.min(top / 200, ...list.map(r => r.tflops)) / 1.5, top * 1.6];
    const families = [...grouped(list, r => r.family)].sort((a, b) => b[1].length - a[1].length);
    const single = families.length === 1;
    const panels = families.map(([family, some]) => ({
      title: `${family} (${some.length})`,
      spec: size => {
        const units = [...new Set([...some.map(r => r.unit), "fma"])].filter(unit => device.roofs[unit]);
        const lines = units.flatMap(unit => {
          const peak = device.roofs[unit] / 1e12;
          return [
            [xs[0], copy * xs[0]],
            [peak / copy, peak],
            [Math.max(xs[1], peak / copy), peak],
          ].map(([x, y], n) => ({unit, x, y: Math.min(y, peak), n, color: unit === "fma" ? muted : look().series[dtypeIndex(unit)]}));
        });
        const ends = []; // labels of the flat parts, one for those that lie close together
        for (const unit of [...units].sort((a, b) => device.roofs[b] - device.roofs[a])) {
          const peak = device.roofs[unit] / 1e12,
            label = `${unit === "fma" ? "float32 FMA" : unit} ${digits(peak)}`,
            above = ends[ends.length - 1];
          if (above && above.last / peak < 1.25) Object.assign(above, {label: `${above.label}, ${label}`, last: peak});
          else ends.push({x: xs[1], y: peak, last: peak, label});
        }
        const x = {
          field: "x",
          type: "quantitative",
          title: single || size > 400 ? "FLOP per byte" : "FLOP/B",
          scale: {type: "log", domain: xs, nice: false},
          axis: {values: powers(...xs, 10), format: "~g", labelOverlap: true},
        };
        const y = {
          field: "y",
          type: "quantitative",
          title: single ? "TFLOP/s" : null,
          scale: {type: "log", domain: ys, nice: false},
          axis: {values: powers(...ys, 10), format: "~g", labelPadding: 4},
        };
        return {
          width: size,
          height: single ? Math.min(460, Math.max(280, size * 0.6)) : 170,
          autosize: {type: "fit-x", contains: "padding"},
          layer: [
            {
              data: {values: lines},
              mark: {type: "line", clip: true, strokeWidth: 1.6, opacity: 0.9},
              encoding: {x, y, color: raw("color"), detail: {field: "unit"}, order: {field: "n"}},
            },
            ...(single
              ? [
                  {
                    data: {values: ends},
                    mark: {type: "text", align: "right", dy: -8, dx: -2, fontSize: 11, color: text, clip: true},
                    encoding: {x, y, text: {field: "label"}},
                  },
                ]
              : []),
            {
              data: {values: some.map(r => ({k: r.i, x: intensity(r), y: r.tflops, ...byDtype(r)}))},
              mark: dots(single ? 46 : 26, {clip: true}),
              encoding: {x, y, color: raw("color"), shape: raw("shape")},
            },
          ],
        };
      },
    }));
    return {
      panels,
      legend: dtypeLegend(list),
      tip: rowTip(rows),
      note: single ? "" : "y: TFLOP/s. A family chosen above is drawn large.",
    };
  },
};

const chartBandwidth = {
  id: "bandwidth",
  has: () => rows.some(r => r.bound === "memory"),
  title: "Bandwidth over size",
  about: "Problems that memory limits: bytes of the operands per second over their number. Line: the copy rate of the same runs.",
  build() {
    const list = chosenRows().filter(r => r.bound === "memory" && r.gbs),
      copy = deviceOf(state.device).roofs.copy / 1e9;
    if (!list.length) return {panels: []};
    const size = r => (r.gbs * 1e3 * r.time_us) / 2 ** 20;
    const xs = [Math.min(...list.map(size)) / 1.3, Math.max(...list.map(size)) * 1.3];
    const values = list.map(r => ({k: r.i, x: size(r), y: r.gbs, ...byDtype(r)}));
    const x = {
      field: "x",
      type: "quantitative",
      title: "MiB read and written",
      scale: {type: "log", domain: xs, nice: false},
      axis: {format: "~g", values: powers(...xs, 10)},
    };
    const y = {
      field: "y",
      type: "quantitative",
      title: "GB/s",
      scale: {domain: [0, Math.max(1.08 * copy, ...list.map(r => r.gbs))], nice: false},
    };
    return {
      legend: dtypeLegend(list),
      tip: rowTip(rows),
      panels: [
        {
          spec: width => ({
            width,
            height: 340,
            autosize: {type: "fit-x", contains: "padding"},
            layer: [
              {data: {values: [{}]}, mark: {type: "rule", strokeWidth: 1.2}, encoding: {y: {datum: copy, type: "quantitative"}}},
              {
                data: {values: [{x: xs[0], y: copy}]},
                mark: {type: "text", align: "left", dx: 4, dy: -7, text: `copy ${digits(copy)} GB/s`},
                encoding: {x, y},
              },
              {data: {values}, mark: dots(34), encoding: {x, y, color: raw("color"), shape: raw("shape")}},
            ],
          }),
        },
      ],
    };
  },
};

// A chart of two times on the same scale, with the diagonal where they are the same.
function diagonal(values, {xTitle, yTitle, guides = []}) {
  const all = values.flatMap(v => [v.x, v.y]),
    domain = [Math.min(...all) / 1.2, Math.max(...all) * 1.2];
  const axis = {values: powers(...domain, 10), labelExpr: "format(datum.value, '~s')"};
  const channel = (field, title) => ({field, type: "quantitative", title, scale: {type: "log", domain, nice: false}, axis});
  const lines = [1, ...guides].flatMap(f => [
    {f, x: domain[0], y: domain[0] * f},
    {f, x: domain[1], y: domain[1] * f},
  ]);
  const x = channel("x", xTitle),
    y = channel("y", yTitle);
  return {
    panels: [
      {
        spec: width => ({
          width,
          height: 340,
          autosize: {type: "fit-x", contains: "padding"},
          layer: [
            {
              data: {values: lines},
              mark: {type: "line", clip: true, color: look().muted},
              encoding: {x, y, detail: {field: "f"}, strokeDash: {condition: {test: "datum.f != 1", value: [3, 4]}, value: [1, 0]}},
            },
            {data: {values}, mark: dots(30, {opacity: 0.6}), encoding: {x, y, color: raw("color"), shape: raw("shape")}},
          ],
        }),
      },
    ],
    tip: rowTip(rows),
  };
}

const chartEstimate = {
  id: "estimate",
  has: () => rows.some(r => r.estimate_us),
  title: "Estimated and measured time",
  about: "What the cost model predicts beside what was measured, for what dispatch chose. Solid: the same; dashed: twice and half.",
  build() {
    const list = rows.filter(r => (r.chosen || r.predicted) && r.ok && r.estimate_us && wanted(r)),
      {good, bad} = look();
    if (!list.length) return {panels: []};
    const styles = {
      memory: {color: good, shape: "circle"},
      arithmetic: {color: bad, shape: "square"},
      "": {color: look().grey, shape: "diamond"},
    };
    const off = list.map(r => Math.max(r.estimate_us / r.time_us, r.time_us / r.estimate_us));
    return {
      ...diagonal(
        list.map(r => ({k: r.i, x: r.time_us, y: r.estimate_us, ...styles[r.bound]})),
        {xTitle: "measured µs", yTitle: "estimated µs", guides: [2, 0.5]},
      ),
      note:
        `Off by a factor of ${digits(geomean(off))} (geometric mean); ` +
        `within 25 % in ${off.filter(f => f <= 1.25).length} of ${off.length}.`,
      legend: [
        {name: "limited by memory", ...styles.memory},
        {name: "limited by arithmetic", ...styles.arithmetic},
      ],
    };
  },
};

const chartHost = {
  id: "host",
  has: () => rows.some(r => r.host_us),
  title: "Host time and device time",
  about:
    "Time of a call on the host, nothing waited for, beside the kernels' time. Above the line a stream of such calls is limited by " +
    "the host.",
  build() {
    const {good, grey} = look(),
      ours = {color: good, shape: "circle"},
      theirs = {color: grey, shape: "cross"};
    const list = rows.filter(r => r.ok && r.host_us && (r.chosen || r.peer) && wanted(r));
    if (!list.length) return {panels: []};
    const middle = some => (some.length ? microseconds(quantile(ascending(some.map(r => r.host_us)), 0.5)) : "");
    const [mine, peers] = [list.filter(r => !r.peer), list.filter(r => r.peer)];
    return {
      ...diagonal(
        [...peers, ...mine].map(r => ({k: r.i, x: r.time_us, y: r.host_us, ...(r.peer ? theirs : ours)})),
        {xTitle: "device µs", yTitle: "host µs"},
      ),
      note:
        `Median: ${middle(mine)}${peers.length ? `, of peers ${middle(peers)}` : ""}; ` +
        `limited by the host: ${mine.filter(r => r.host_us > r.time_us).length} of ${mine.length}.`,
      legend: [
        {name: "dnnkern", ...ours},
        {name: "peers", ...theirs},
      ],
    };
  },
};
