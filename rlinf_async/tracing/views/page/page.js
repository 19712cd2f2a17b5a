// The page: asks for the state while it is live, and obeys mouse and keys.
const WINDOWS = [1, 2, 5, 10, 30, 60], PERIOD_MS = 700, MINUTE = 60;
let seconds_shown = 5, held = false, state = null, loaded = 0, asking = null;

async function load(wanted) {
  const answer = await fetch(`state?seconds=${wanted}`);
  if (!answer.ok) throw new Error(answer.statusText);
  state = await answer.json(); loaded = wanted; timeline.take(state);
  head(state); tellStages(state); tellDevices(state); tellCredits(state); tellPlans(state); tellProcesses(state); tellJourney();
}
async function refresh() {
  try {
    await load(seconds_shown); if (!held) timeline.look(timeline.end - seconds_shown * 1e6, timeline.end);
    if (state.ended) hold(true);
  } catch { $("phase").textContent = "the viewer has gone"; $("phase").className = "chip over"; held = true; }
}
async function live() { if (!held && !document.hidden) await (asking = refresh()); setTimeout(live, PERIOD_MS); }

// A held view may be moved through the whole minute: it is loaded once.
async function hold(on) {
  if (held === on) return;
  held = on; $("hold").textContent = on ? "go on" : "hold"; $("hold").classList.toggle("on", on);
  if (!on) { choose(null); return refresh(); }
  await asking; if (loaded < MINUTE && !state.ended) try { await load(MINUTE); timeline.ask(); } catch { /* what is there stays */ }
}
function shown(wanted) {
  seconds_shown = wanted; buttons();
  if (held) timeline.look(timeline.to - wanted * 1e6, timeline.to); else refresh();
}
function buttons() {
  show("windows", ...WINDOWS.map(n => { const b = make("button", n === seconds_shown ? "on" : "", n === 60 ? "1 min" : n + " s"); b.onclick = () => shown(n); return b; }));
}
function choose(segment) { timeline.choose(segment); tellJourney(); }

$("hold").onclick = () => hold(!held);
$("leave").onclick = () => choose(null);
const canvas = timeline.canvas, draw = timeline.draw.bind(timeline);
timeline.draw = () => { draw(); tellRange(); };
canvas.onwheel = event => {
  if (event.shiftKey) return; // scrolls the rows
  event.preventDefault(); hold(true); timeline.zoom(Math.exp(event.deltaY * .0018), event.offsetX);
};
let drag = null;
canvas.onmousedown = event => { drag = {x: event.clientX, from: timeline.from, to: timeline.to, moved: false}; };
onmouseup = event => {
  canvas.classList.remove("drag");
  if (drag && !drag.moved && event.target === canvas) {
    const found = timeline.hit(event.offsetX, event.offsetY), segments = found && found.row.segments[found.n];
    if (segments) hold(true);
    choose(segments ? segments[0] : null);
  }
  drag = null;
};
onmousemove = event => {
  if (drag && Math.abs(event.clientX - drag.x) > 3) {
    hold(true); drag.moved = true; canvas.classList.add("drag");
    const by = (event.clientX - drag.x) / timeline.width() * (drag.to - drag.from); timeline.look(drag.from - by, drag.to - by); return;
  }
  const found = event.target === canvas && state ? timeline.hit(event.offsetX, event.offsetY) : null, tip = $("tip");
  tip.style.display = found ? "block" : "none"; if (!found) return;
  const {row: r, n} = found, segments = r.segments[n];
  tip.style.left = Math.min(event.clientX + 14, innerWidth - 300) + "px"; tip.style.top = event.clientY + 14 + "px";
  tip.textContent = `${r.names[r.name[n]]}   ${time(r.end[n] - r.begin[n])}\n${r.process}, ${r.label}, ${time(timeline.end - r.begin[n])} ago` +
    (segments ? `\n${segments.length === 1 ? "cell " + segments[0] % CELLS : segments.length + " cells"} of batch ${Math.floor(segments[0] / CELLS)}: click for the way` : "");
};
canvas.ondblclick = () => hold(false);
onkeydown = event => {
  const keys = {" ": () => hold(!held), "+": () => { hold(true); timeline.zoom(.7); }, "=": () => { hold(true); timeline.zoom(.7); }, "-": () => { hold(true); timeline.zoom(1.4); },
    ArrowLeft: () => { hold(true); timeline.pan(-.2); }, ArrowRight: () => { hold(true); timeline.pan(.2); }, Escape: () => choose(null)};
  if (keys[event.key] && !event.ctrlKey && !event.metaKey && event.target.tagName !== "BUTTON") { event.preventDefault(); keys[event.key](); }
};
timeline.box.onscroll = () => timeline.ask();
onresize = () => { if (state) { timeline.resize(); timeline.ask(); } };
legend(); buttons(); live();
