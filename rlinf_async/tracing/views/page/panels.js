// Everything around the timeline. Text of a run is never markup: it goes in as text.
const make = (tag, cls, ...inside) => { const e = document.createElement(tag); if (cls) e.className = cls; e.append(...inside.map(i => i instanceof Node ? i : String(i))); return e; };
const show = (id, ...inside) => $(id).replaceChildren(...inside);
const row = cells => make("tr", "", ...cells.map(c => c instanceof Node && c.tagName === "TD" ? c : make("td", "", c)));
const percent = part => Math.round(part * 100) + "%";
const whole = n => Math.round(n).toLocaleString("en");
const mib = bytes => whole(bytes / 1048576) + " MiB";
const seconds = s => s === null || s === undefined ? "–" : s >= 1 ? s.toFixed(2) + " s" : whole(s * 1000) + " ms";
const age = s => s < 90 ? s.toFixed(0) + " s" : s < 5400 ? (s / 60).toFixed(0) + " min" : (s / 3600).toFixed(1) + " h";

function spark(values, colour) {
  const svg = $("spark").content.firstElementChild.cloneNode(true), line = svg.firstElementChild;
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  line.setAttribute("points", values.map((v, n) => `${n / Math.max(values.length - 1, 1) * 100},${24 - (v - low) / span * 20}`).join(" "));
  line.setAttribute("stroke", colour); return svg;
}
function tile(name, value, course, colour, bad) {
  const e = make("div", "tile" + (bad ? " bad" : ""), make("small", "", name), make("b", "", value));
  if (course && course.length > 2) e.append(spark(course, colour)); return e;
}
function shares(parts) { // [[part, colour, title]]
  const bar = make("div", "shares");
  for (const [part, colour, title] of parts) { const i = make("i"); i.style.width = Math.max(part, 0) * 100 + "%"; i.style.background = colour; i.title = title; bar.append(i); }
  return bar;
}
function head(state) {
  const s = state.status, h = state.history, apart = 8, speed = [];
  for (let n = apart; n < h.length; n++) speed.push((h[n][2] - h[n - apart][2]) / Math.max((h[n][0] - h[n - apart][0]) * 1e-9, 1e-9));
  document.title = `${state.run.id} · rlinf_async`;
  $("id").textContent = state.run.id; $("title").textContent = s.title;
  $("phase").textContent = `${state.ended ? "ended" : s.phase} · ${age(s.elapsed_s)}`; $("phase").className = "chip" + (state.ended ? " over" : "");
  $("bar").firstChild.style.width = s.iteration / Math.max(s.iterations, 1) * 100 + "%";
  $("iterations").textContent = `${whole(s.iteration)} of ${whole(s.iterations)}`;
  $("verdict").className = state.healthy ? "" : "bad"; show("verdict", ...state.verdict.filter(Boolean).map(line => make("div", "", line)));
  const memory = state.hosts.reduce((sum, host) => sum + (host.rss_bytes || 0), 0), c = state.credits;
  show("tiles",
    tile("environment steps / s", whole(s.env_steps_per_s), speed, "#3fb950"),
    tile("mean return", s.return_mean === null ? "–" : s.return_mean.toFixed(1)),
    tile("lag, least / mean / most", `${s.lag[0]} / ${s.lag[1].toFixed(1)} / ${s.lag[2]} of ${state.max_lag}`),
    tile("rows free", c.rows === undefined ? "–" : `${c.rows_free} of ${c.rows}`),
    tile("loop late", s.loop_lag_ms.toFixed(0) + " ms", h.map(r => r[3]), "#ffa657", s.loop_lag_ms > 250),
    tile("memory of the hosts", memory ? mib(memory) : "–", h.map(r => r[4]), "#5aa9ff"),
    tile("packets dropped for viewers", whole(state.dropped)));
}
function tellStages(state) {
  show("stages", ...state.stages.flatMap(stage => {
    const parts = Object.entries(stage.shares).map(([kind, part]) => [part, LEGEND.states[kind], `${kind} ${percent(part)}`]);
    return [make("span", "", stage.name), shares(parts), make("span", "dim", stage.words)];
  }));
}
function tellDevices(state) {
  if (!state.devices.length) return show("devices", make("span", "dim", "not yet"));
  show("devices", ...state.devices.flatMap(d => {
    const greens = ["#3fb950", "#2a7f3b", "#7ee08f", "#1d5a2a"], most = Math.max(1, Object.values(d.busy).reduce((sum, part) => sum + part, 0));
    const parts = Object.entries(d.busy).map(([host, part], n) => [part / most, host === "train" ? LEGEND.spans.train : greens[n % 4], `${host} ${percent(part)}`]);
    const work = Object.entries(d.busy).filter(e => e[1] >= .01).map(([host, part]) => `${host} ${percent(part)}`).join(", ");
    const idle = Object.entries(d.idle).filter(e => e[1] >= .02).map(([why, part]) => `${percent(part)} waits for ${why}`).join(", ");
    return [make("span", "", d.name), shares(parts), make("span", "dim", [work, idle].filter(Boolean).join(" · "))];
  }));
}
function tellCredits(state) {
  const c = state.credits, pairs = c.admitted === undefined ? [] : [["admitted", c.admitted], ["queued", c.queued], ["running", c.running], ["trained", c.trained], ["dropped", c.dropped],
    ["batches under way", `${c.batches} of ${c.credits}`], ["live version", c.version]];
  show("credits", ...pairs.map(([name, value]) => make("span", "dim", `${name} `, make("b", name === "dropped" && value ? "bad" : "", typeof value === "number" ? whole(value) : value))));
  show("streams", ...state.streams.flatMap(e => [make("span", "", e.name), shares([[e.fill / e.capacity, "#5aa9ff", ""]]), make("span", "dim", `${e.fill} of ${e.capacity}, ${whole(e.put)} in, at most ${e.peak}`)]));
}
function tellPlans(state) {
  $("plan-now").textContent = state.status.plan ? `now ${state.status.plan}` : "";
  if (!state.plans.length) return show("plans", make("span", "dim", "this arrangement is fixed, or nothing has been decided yet"));
  show("plans", ...state.plans.slice().reverse().map(plan => {
    const most = Math.max(...Object.values(plan.predicted_s).flat(), ...Object.values(plan.measured_s)), grid = make("div", "rows");
    for (const name of new Set([...Object.keys(plan.predicted_s), ...Object.keys(plan.measured_s)])) {
      const predicted = plan.predicted_s[name], measured = plan.measured_s[name], gauge = make("div", "gauge");
      if (predicted) { const i = make("i"), b = make("b"); i.style.left = predicted[1] / most * 97 + "%"; i.style.width = (predicted[2] - predicted[1]) / most * 97 + "%"; b.style.left = predicted[0] / most * 97 + "%"; gauge.append(i, b); }
      if (measured !== undefined) { const b = make("b", "measured"); b.style.left = measured / most * 97 + "%"; gauge.append(b); }
      grid.append(make("span", name === plan.chosen ? "" : "dim", name), gauge, make("span", "num dim", `predicted ${seconds(predicted && predicted[0])}, measured ${seconds(measured)}`));
    }
    return make("div", "plan", make("b", "", plan.chosen), ` from iteration ${whole(plan.iteration)} `, make("span", "dim", plan.reason), grid);
  }));
}
function tellProcesses(state) {
  show("hosts", ...state.hosts.map(h => row([h.name, make("td", "dim", h.roles === h.name ? "" : h.roles || ""), make("td", "dim", (h.cores || []).length ? "on " + h.cores.join(", ") : ""),
    make("td", h.lost ? "bad" : "", h.lost || h.doing), make("td", "num dim", h.rss_bytes ? mib(h.rss_bytes) : "")])));
  show("tasks", ...state.tasks.map(t => row([t.count > 1 ? `${t.name} and ${t.count - 1} more` : t.name, make("td", "", make("code", "", (t.where.length > 3 ? [t.where[0], "…", ...t.where.slice(-2)] : t.where).join(" → ")))])));
  show("log", ...state.log.map(l => make("div", l.level, `${l.at} `, make("b", "", l.event), ` ${l.told}`)));
}
function tellJourney() {
  const way = timeline.way; $("journey").hidden = timeline.chosen === null;
  if (timeline.chosen === null) return;
  const cell = timeline.chosen % CELLS, batch = Math.floor(timeline.chosen / CELLS), last = way[way.length - 1];
  $("journey-title").textContent = `the way of cell ${cell}, batch ${batch}` + (way.length > 1 ? `: ${time(last.begin - way[0].begin)} from ${way[0].name} to ${last.name}` : "");
  show("stations", ...way.map((s, n) => make("li", "", make("b", "", s.name), `${s.process} · ${time(s.end - s.begin)}`, make("br"),
    make("span", "dim", s.call === s.name ? "" : `in ${s.call}, ${time(s.call_us)}`), make("br"), make("em", "", n + 1 < way.length ? `${time(way[n + 1].begin - s.begin)} later` : ""))));
}
function tellRange() {
  const about = `${time(timeline.to - timeline.from)} until ${timeline.end - timeline.to < 1000 ? "now" : time(timeline.end - timeline.to) + " ago"}`;
  $("range").textContent = about + "  ·  wheel zooms, drag moves, click render.begin, rollout.open or train.gather for its segment's way";
}
function legend() {
  for (const [name, colour] of [...Object.entries(LEGEND.states || {}), ...Object.entries(LEGEND.spans || {})]) { const i = make("i"); i.style.background = colour; $("legend").append(make("span", "", i, name)); }
}
