// Charts on the page: drawing by Vega, and what a pointer, a finger or a keyboard does to their points.

const NARROW = 620;

function config() {
  const {text, muted, line} = look();
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: "transparent",
    font,
    view: {stroke: null},
    axis: {
      labelColor: text,
      titleColor: muted,
      gridColor: line,
      domainColor: line,
      tickColor: line,
      labelFontSize: 12,
      titleFontSize: 12,
      titleFontWeight: "normal",
      labelLimit: 320,
      grid: true,
      labelFontWeight: "normal",
      labelSeparation: 8,
    },
    axisY: {domain: false, ticks: false, labelPadding: 8},
    text: {color: text, fontSize: 12},
    point: {filled: true},
    header: {labelColor: text},
    rule: {color: text},
  };
}

// Draws a Vega-Lite specification into an element, without the menu and the tips of vega-embed; resolves to its points: [{k, x, y}] in
// pixels of the element.
async function draw(holder, spec) {
  const {view} = await vegaEmbed(
    holder,
    {padding: {left: 2, right: 12, top: 6, bottom: 4}, ...spec},
    {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      tooltip: false,
      hover: false,
      defaultStyle: false,
      logLevel: 1,
      config: config(),
    },
  );
  const svg = holder.querySelector("svg");
  svg.setAttribute("aria-hidden", "true");
  for (const part of svg.querySelectorAll("[tabindex], [role]")) {
    part.removeAttribute("tabindex");
    part.removeAttribute("role");
  }
  const origin = holder.getBoundingClientRect(),
    points = [];
  for (const mark of svg.querySelectorAll(".mark-symbol > path, .mark-rect > path, .mark-rule > line")) {
    const k = mark.__data__?.datum?.k;
    if (k === undefined) continue;
    const box = mark.getBoundingClientRect();
    points.push({k, x: box.left + box.width / 2 - origin.left, y: box.top + box.height / 2 - origin.top});
  }
  return {view, points};
}

// ---- the tip

const tip = $("tip");
let pinned = null;
let reached = null; // of a tip that stays while the page scrolls: puts it where its point is now

function hideTip() {
  tip.hidden = true;
  tip.classList.remove("pinned");
  pinned = null;
  reached = null;
  for (const ring of document.querySelectorAll(".mark")) ring.remove();
}

function showTip(plot, chart, point, spoken) {
  const {title, fields, row} = chart.tip(point.k);
  for (const ring of document.querySelectorAll(".mark")) ring.remove();
  const ring = make("div", {class: "mark"});
  ring.style.left = `${point.x}px`;
  ring.style.top = `${point.y}px`;
  plot.append(ring);
  tip.replaceChildren(
    make("h4", {}, title),
    make(
      "dl",
      {},
      fields.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
    ),
  );
  if (row) {
    if (pinned)
      tip.append(make("button", {type: "button", class: "button", onclick: () => focusProblem(row)}, "All rows of this problem"));
    else tip.append(make("p", {class: "hint"}, spoken ? "Enter: all rows of this problem" : "Click to keep this open"));
  }
  tip.hidden = false;
  tip.classList.toggle("pinned", Boolean(pinned));
  putTip(plot, point);
  reached = spoken || pinned ? () => putTip(plot, point) : null;
  if (spoken) $("said").textContent = `${title}. ${fields.map(([name, value]) => `${name} ${value}`).join(", ")}`;
}

function putTip(plot, point) {
  const box = plot.getBoundingClientRect(),
    x = box.left + point.x,
    y = box.top + point.y;
  const left = x + 16 + tip.offsetWidth < innerWidth ? x + 16 : Math.max(8, x - 16 - tip.offsetWidth);
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(8, Math.min(y - 24, innerHeight - tip.offsetHeight - 8))}px`;
}

function interact(plot, chart, points) {
  if (!points.length) return;
  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute(
    "aria-label",
    `${chart.title}: ${plural(points.length, "point")}. Arrow keys go from point to point, Enter opens one.`,
  );
  const order = [...points].sort((a, b) => (chart.banded && Math.abs(a.y - b.y) > chart.banded / 2 ? a.y - b.y : a.x - b.x));
  let at = -1;
  const nearest = event => {
    const box = plot.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    let best = null,
      distance = event.pointerType === "touch" ? 1200 : 500;
    for (const p of points) {
      const d = (p.x - x) ** 2 + (p.y - y) ** 2;
      if (d < distance) {
        best = p;
        distance = d;
      }
    }
    return best;
  };
  plot.addEventListener("pointermove", event => {
    if (pinned || event.pointerType === "touch") return;
    const found = nearest(event);
    if (found) showTip(plot, chart, found);
    else hideTip();
  });
  plot.addEventListener("pointerleave", () => {
    if (!pinned) hideTip();
  });
  plot.addEventListener("click", event => {
    const found = nearest(event);
    hideTip();
    if (!found) return;
    pinned = plot;
    at = order.indexOf(found);
    showTip(plot, chart, found);
    event.stopPropagation();
  });
  plot.addEventListener("keydown", event => {
    const here = order[at],
      step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    let next = null;
    if (step) next = order[at < 0 ? (step > 0 ? 0 : order.length - 1) : (at + step + order.length) % order.length];
    else if (event.key === "Home") next = order[0];
    else if (event.key === "End") next = order[order.length - 1];
    else if (event.key === "ArrowDown" || event.key === "ArrowUp")
      next = here ? across(points, here, event.key === "ArrowDown" ? 1 : -1) : order[0];
    else if (event.key === "Enter" && here) {
      const {row} = chart.tip(here.k);
      if (row) focusProblem(row);
    } else if (event.key === "Escape") hideTip();
    else return;
    event.preventDefault();
    if (!next) return;
    at = order.indexOf(next);
    pinned = null;
    showTip(plot, chart, next, true);
  });
  plot.addEventListener("blur", () => {
    if (!pinned) hideTip();
  });
}

// The nearest point below (way 1) or above (way -1).
function across(points, here, way) {
  let best = null,
    distance = Infinity;
  for (const p of points) {
    const down = (p.y - here.y) * way;
    if (down > 3 && Math.abs(p.x - here.x) + down * 1.5 < distance) {
      best = p;
      distance = Math.abs(p.x - here.x) + down * 1.5;
    }
  }
  return best;
}

document.addEventListener("click", event => {
  if (pinned && !tip.contains(event.target)) hideTip();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") hideTip();
});
addEventListener(
  "scroll",
  () => {
    if (reached) reached();
    else hideTip();
  },
  {passive: true},
);

// ---- a chart's figure

const figures = new Map();
const observer = new IntersectionObserver(
  entries => {
    for (const entry of entries) {
      const figure = figures.get(entry.target);
      figure.visible = entry.isIntersecting;
      if (figure.visible && figure.stale) render(figure);
    }
  },
  {rootMargin: "500px"},
);

function addChart(chart, parent) {
  const body = make("div", {class: "body"}),
    note = make("p", {class: "about"});
  const element = make(
    "figure",
    {class: `chart${chart.wide ? " wide" : ""}`, id: `chart-${chart.id}`},
    make(
      "figcaption",
      {},
      make("div", {}, make("h2", {}, chart.title), make("p", {class: "about"}, chart.about)),
      chart.controls ? chart.controls() : null,
    ),
    note,
    body,
  );
  parent.append(element);
  const figure = {chart, element, body, note, stale: true, visible: false};
  figures.set(element, figure);
  observer.observe(element);
}

async function render(figure) {
  figure.stale = false;
  const {chart, body} = figure,
    turn = (figure.turn = (figure.turn || 0) + 1);
  const width = Math.floor(body.clientWidth);
  figure.width = width;
  const built = chart.build(width);
  figure.note.textContent = built?.note || "";
  if (!built || !built.panels.length) {
    body.replaceChildren(make("p", {class: "empty"}, built?.empty || "No such rows with these filters."));
    return;
  }
  chart.tip = built.tip;
  chart.banded = built.banded;
  const drawn = make("div", {class: built.panels.length > 1 ? "panels" : "panels single"});
  const plots = built.panels.map(panel => {
    const plot = make("div", {class: "plot"});
    drawn.append(make("div", {}, panel.title ? make("h3", {}, panel.title) : null, plot));
    return plot;
  });
  const height = body.offsetHeight;
  body.style.minHeight = `${height}px`; // what is below does not jump
  body.replaceChildren(...[legendOf(built.legend || []), drawn, built.more || null].filter(Boolean));
  if (built.panels.length === 1) drawn.style.gridTemplateColumns = "minmax(0, 1fr)";
  await Promise.all(
    built.panels.map(async (panel, n) => {
      const {points} = await draw(plots[n], panel.spec(Math.floor(plots[n].clientWidth)));
      if (figure.turn === turn)
        interact(plots[n], {...chart, title: panel.title ? `${chart.title}, ${panel.title}` : chart.title}, points);
    }),
  );
  body.style.minHeight = "";
  figure.element.dataset.ready = "1";
}

function refresh(resized = false) {
  hideTip();
  for (const figure of figures.values()) {
    if (resized && Math.abs(figure.body.clientWidth - figure.width) < 4) continue;
    figure.stale = true;
    delete figure.element.dataset.ready;
    if (figure.visible) render(figure);
  }
}
