// The timeline: rows of slices on a canvas, a view that zooms and moves, and the way of one segment.
const $ = id => document.getElementById(id);
const LABEL = 178, ROW = 16, GAP = 5, TITLE = 26, COUNTER = 30, CELLS = LEGEND.cells;
const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
const time = us => { const a = Math.abs(us);
  return a >= 1e6 ? (us / 1e6).toFixed(2) + " s" : a >= 1e3 ? (us / 1e3).toFixed(a >= 1e5 ? 0 : 2) + " ms" : Math.round(us) + " µs"; };

const timeline = {
  canvas: $("timeline"), ruler: $("ruler"), box: $("scroll"),
  rows: [], marks: [], from: 0, to: 1, end: 0, chosen: null, way: [], drawn_ms: [], frames: 0, pending: false,

  // `state` is what the server told; times become microseconds of the run's clock.
  take(state) {
    const at = state.taken_us; this.end = at; this.rows = []; this.marks = [];
    let y = 2;
    for (const process of state.processes) {
      this.rows.push({kind: "title", process: process.name, about: process.about, y, height: TITLE}); y += TITLE;
      for (const mark of process.instants) this.marks.push({at: at + mark[0], name: mark[1]});
      for (const told of process.rows) {
        const row = {...told, process: process.name, y, begin: shifted(told.begin, at)};
        if (row.kind === "counter") row.height = COUNTER;
        else {
          row.end = shifted(told.end, at); row.latest = row.end.slice();
          for (let n = 1; n < row.latest.length; n++) row.latest[n] = Math.max(row.latest[n], row.latest[n - 1]);
          row.height = ROW * row.depths;
        }
        this.rows.push(row); y += row.height + GAP;
      }
    }
    this.height = y + 4; this.resize(); this.follow();
  },

  resize() {
    const scale = devicePixelRatio || 1;
    for (const [canvas, height] of [[this.canvas, this.height || 10], [this.ruler, 24]]) {
      canvas.style.height = height + "px";
      const wide = Math.round(canvas.clientWidth * scale), high = Math.round(height * scale);
      if (canvas.width !== wide) canvas.width = wide;
      if (canvas.height !== high) canvas.height = high;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
  },

  look(from, to) {
    const least = 20, most = 120e6, span = Math.min(Math.max(to - from, least), most), middle = (from + to) / 2;
    this.from = middle - span / 2; this.to = middle + span / 2; this.ask();
  },
  zoom(by, px = LABEL + this.width() / 2) {
    const at = this.us(px); this.look(at - (at - this.from) * by, at + (this.to - at) * by);
  },
  pan(part) { const by = part * (this.to - this.from); this.look(this.from + by, this.to + by); },
  ask() { if (!this.pending) { this.pending = true; requestAnimationFrame(() => { this.pending = false; this.draw(); }); } },
  width() { return this.canvas.clientWidth - LABEL - 14; },
  x(us) { return LABEL + (us - this.from) / (this.to - this.from) * this.width(); },
  us(px) { return this.from + (px - LABEL) / this.width() * (this.to - this.from); },

  draw() {
    const began = performance.now(), pen = this.canvas.getContext("2d"), top = this.box.scrollTop, bottom = top + this.box.clientHeight;
    pen.clearRect(0, top - 2, this.canvas.clientWidth, bottom - top + 4);
    pen.font = FONT; pen.textBaseline = "middle";
    const ticks = this.ticks();
    pen.fillStyle = "#161d28"; for (const tick of ticks) pen.fillRect(Math.round(this.x(tick)), top, 1, bottom - top);
    for (const row of this.rows) if (row.y + row.height >= top && row.y <= bottom) this.drawRow(pen, row);
    this.drawWay(pen); this.drawRuler(ticks);
    this.drawn_ms.push(performance.now() - began); if (this.drawn_ms.length > 600) this.drawn_ms.shift();
    this.frames++;
  },
  ticks() {
    const rough = (this.to - this.from) / Math.max(this.width() / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(n => n * power >= rough) * power, found = [];
    for (let n = Math.ceil((this.from - this.end) / step); this.end + n * step <= this.to; n++) found.push(this.end + n * step);
    return found;
  },
  tickWords(us, ticks) {
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1e6, [unit, name] = step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
    return (us / unit).toFixed(Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9))) + " " + name;
  },
  drawRuler(ticks) {
    const pen = this.ruler.getContext("2d"), right = LABEL + this.width();
    pen.clearRect(0, 0, this.ruler.clientWidth, 24); pen.font = FONT; pen.textBaseline = "middle";
    pen.fillStyle = "#7d8797"; pen.textAlign = "center";
    for (const tick of ticks) { const x = this.x(tick); if (x > LABEL + 24 && x < right - 24) pen.fillText(Math.abs(tick - this.end) < 1 ? "now" : this.tickWords(tick - this.end, ticks), x, 12); }
    pen.textAlign = "left";
    let free = LABEL;
    for (const mark of this.marks) {
      const x = this.x(mark.at); if (x < LABEL || x > right) continue;
      pen.fillStyle = "#ffa657"; pen.fillRect(x, 2, 1.5, 22);
      if (x >= free) { const wide = pen.measureText(mark.name).width; pen.fillStyle = "#11161f"; pen.fillRect(x + 3, 3, wide + 6, 18);
        pen.fillStyle = "#ffa657"; pen.fillText(mark.name, x + 6, 12); free = x + wide + 16; }
    }
  },
  drawRow(pen, row) {
    if (row.kind === "title") {
      pen.fillStyle = "#f1f5fa"; pen.font = "600 " + FONT; pen.fillText(row.process, 14, row.y + TITLE / 2 + 2);
      const wide = Math.max(pen.measureText(row.process).width + 26, LABEL); pen.font = FONT;
      pen.fillStyle = "#7d8797"; pen.fillText(row.about, wide, row.y + TITLE / 2 + 2); return;
    }
    pen.fillStyle = "#9aa5b5"; pen.fillText(clipped(pen, row.label, LABEL - 36), 26, row.y + Math.min(row.height, ROW) / 2);
    pen.fillStyle = "#161c26"; pen.fillRect(LABEL, row.y, this.width(), row.height);
    pen.save(); pen.beginPath(); pen.rect(LABEL, row.y, this.width(), row.height); pen.clip();
    if (row.kind === "counter") this.drawCounter(pen, row); else this.drawSlices(pen, row);
    pen.restore();
  },
  drawCounter(pen, row) {
    const most = Math.max(...row.value, 1e-9), y = v => row.y + row.height - 2 - v / most * (row.height - 6);
    pen.strokeStyle = "#5aa9ff"; pen.fillStyle = "#5aa9ff22"; pen.lineWidth = 1.2; pen.beginPath();
    let last = null;
    for (let n = 0; n < row.begin.length; n++) {
      const x = this.x(row.begin[n]); if (n + 1 < row.begin.length && this.x(row.begin[n + 1]) < LABEL) continue;
      if (last === null) pen.moveTo(x, y(row.value[n])); else { pen.lineTo(x, last); pen.lineTo(x, y(row.value[n])); }
      last = y(row.value[n]); if (x > LABEL + this.width()) break;
    }
    pen.stroke(); pen.fillStyle = "#7d8797"; pen.fillText("max " + most.toPrecision(3), LABEL + 6, row.y + 9);
  },
  drawSlices(pen, row) {
    if (row.since !== null) { // a stage: it works wherever it does not wait
      const x = Math.max(this.x(this.end + row.since), LABEL); pen.fillStyle = LEGEND.states.working;
      pen.globalAlpha = this.chosen === null ? 1 : .25; pen.fillRect(x, row.y, this.x(this.end) - x, ROW - 1); pen.globalAlpha = 1;
    }
    // Slices are in the order of their begins; what lies in a pixel that is full already is skipped.
    const full = new Float64Array(row.depths).fill(-1), labels = [], right = LABEL + this.width();
    const per = this.width() / (this.to - this.from), from = this.from;
    pen.globalAlpha = this.chosen === null ? 1 : .25;
    let colour = null;
    for (let n = firstAtLeast(row.latest, from); n < row.begin.length && row.begin[n] <= this.to; n++) {
      const end = LABEL + (row.end[n] - from) * per, depth = row.depth[n];
      if (end < full[depth] || end < LABEL) continue;
      const begin = Math.max(LABEL + (row.begin[n] - from) * per, LABEL), wide = Math.min(end, right) - begin;
      full[depth] = Math.ceil(begin + .001);
      if (colour !== row.name[n]) { colour = row.name[n]; pen.fillStyle = row.colours[colour]; }
      pen.fillRect(begin, row.y + ROW * depth, Math.max(wide - (wide > 3 ? .8 : 0), 1), ROW - 1);
      if (wide > 46) labels.push([n, begin, wide, row.y + ROW * depth]);
    }
    pen.fillStyle = "#0b0e14";
    for (const [n, begin, wide, y] of labels) pen.fillText(clipped(pen, row.names[row.name[n]], wide - 8), begin + 4, y + ROW / 2);
    pen.globalAlpha = 1;
  },

  // ---- the way of a segment ----
  choose(segment) { this.chosen = segment; this.follow(); this.ask(); },
  follow() {
    this.way = [];
    if (this.chosen === null) return;
    for (const row of this.rows) for (const [at, segments] of Object.entries(row.segments || {})) if (segments.includes(this.chosen)) {
      const n = Number(at); let outer = n;
      while (outer > 0 && !(row.depth[outer] === 0 && row.end[outer] >= row.end[n])) outer--;
      this.way.push({row, n, begin: row.begin[n], end: row.end[n], name: row.names[row.name[n]], process: row.process,
        call: row.names[row.name[outer]], call_us: row.end[outer] - row.begin[outer], outer});
    }
    this.way.sort((a, b) => a.begin - b.begin);
  },
  drawWay(pen) {
    if (!this.way.length) return;
    const places = this.way.map(s => ({x: this.x(s.begin), y: s.row.y + ROW * (s.row.depth[s.n] + .5), s}));
    pen.save(); pen.beginPath(); pen.rect(LABEL, 0, this.width(), this.height); pen.clip();
    for (const {s} of places) for (const n of [s.outer, s.n]) {
      const x = this.x(s.row.begin[n]), wide = Math.max(this.x(s.row.end[n]) - x, 2), y = s.row.y + ROW * s.row.depth[n];
      pen.fillStyle = s.row.colours[s.row.name[n]]; pen.fillRect(x, y, wide, ROW - 1);
      if (wide > 46) { pen.fillStyle = "#0b0e14"; pen.fillText(clipped(pen, s.row.names[s.row.name[n]], wide - 8), Math.max(x, LABEL) + 4, y + ROW / 2); }
    }
    pen.strokeStyle = pen.fillStyle = "#ffa657"; pen.lineWidth = 2; pen.shadowColor = "#ffa657"; pen.shadowBlur = 6;
    pen.beginPath();
    places.forEach((p, n) => { if (!n) return pen.moveTo(p.x, p.y); const q = places[n - 1], bend = Math.max(Math.min((p.x - q.x) / 2, 80), 12);
      pen.bezierCurveTo(q.x + bend, q.y, p.x - bend, p.y, p.x, p.y); });
    pen.stroke();
    for (const p of places) { pen.beginPath(); pen.arc(p.x, p.y, 4, 0, 7); pen.fill(); }
    pen.restore();
  },
  hit(px, py) {
    const us = this.us(px), near = (this.to - this.from) / this.width() * 2;
    for (const row of this.rows) {
      if (row.kind || py < row.y || py >= row.y + row.height || px < LABEL) continue;
      const depth = Math.floor((py - row.y) / ROW);
      for (let n = firstAtLeast(row.latest, us - near); n < row.begin.length && row.begin[n] - near <= us; n++)
        if (row.depth[n] === depth && us <= row.end[n] + near) return {row, n};
    }
    return null;
  },
};
function shifted(values, by) { const out = new Float64Array(values.length); for (let n = 0; n < values.length; n++) out[n] = values[n] + by; return out; }
function firstAtLeast(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] < value) low = middle + 1; else high = middle; }
  return low;
}
const fits = new Map();
function clipped(pen, text, wide) {
  const key = text + "\0" + Math.floor(wide / 6); let found = fits.get(key);
  if (found === undefined) {
    found = text; while (found.length > 1 && pen.measureText(found).width > wide) found = found.slice(0, found.length > 2 ? -2 : -1) ;
    if (found !== text) found = found.length > 2 ? found.slice(0, -1) + "…" : "";
    if (fits.size > 5000) fits.clear(); fits.set(key, found);
  }
  return found;
}
