// Asks for the picture, and brings the page up to it in small steps, so that thousands of GPUs stay fluid.
import { details, dressCard, element, grow, happening, notes, totals, waitingRow } from "./build.js";
import { clock, count, grouped, haystack, matches, memory, share } from "./words.js";

const MANY = 200; // GPUs from which on they are drawn small
const STEP_MS = 8; // of every frame
const POLL_MS = 2000;
const PATIENCE_MS = 120000; // a large picture over a slow network
const HIDDEN_MS = 60000; // its title still tells how many pods wait

const find = (selector) => document.querySelector(selector);
const inputs = ["search", "namespace", "model", "which", "group"];
const groupsElement = find("#groups");
const dialog = find("#details");

const nodes = new Map(); // name -> node as it was sent
const entries = new Map(); // node and UUID -> what is shown of a GPU
const keys = new Map(); // name of a node -> keys of what is shown of it
const groups = new Map(); // heading -> its section
const dirty = new Set(); // names of nodes that are not drawn as they are
let drawn = false; // something of them was since sums were last told
let overview = null;
let waiting = [];
let happenings = [];
let filter = { words: [], namespace: "", model: "", which: "", group: "node" };
let opened = null; // key of the GPU whose details are shown
let current = null; // the card that the Tab key reaches
let frame = 0;
let received = null;
let etag = "";
let lines = new Map(); // JSON of a node as it was sent -> its name; what is the same is not parsed again
let about = ["", "", ""]; // the same of the overview, of pods that wait and of what happened
let again = 0; // a timer
let round = 0; // of asking: an answer to an earlier one, with another key, is too late
let asking = false;

// What is kept for this address, port included, which cookies are not.

function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A browser that keeps nothing has forgotten it the next time.
  }
}

// The address that was printed has the key, where it reaches no server and is removed from at once.

let key = "";

function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) keep("key", given);
  key = given ?? recall("key") ?? key;
}

// Where users sign in, their token is kept for this tab alone. Behind a proxy that adds one they are not asked.

let token = "";
try {
  token = sessionStorage.getItem("token") ?? "";
} catch {
  // A browser that keeps nothing asks again.
}

function signIn(given) {
  token = given;
  try {
    sessionStorage.setItem("token", given);
  } catch {
    // Until the page is loaded again.
  }
}

function askForToken(asked) {
  if (asked === find("#sign-in").hidden) {
    document.body.classList.toggle("signed-out", asked);
    find("#sign-in").hidden = !asked;
    if (asked) find("#token").focus();
  }
  find("#sign-out").hidden = asked || !token;
}

// What arrives.

async function poll() {
  clearTimeout(again);
  const mine = ++round;
  asking = true;
  try {
    // A proxy answers programs that accept JSON with 401, and leads others away to sign in.
    const headers = { Accept: "application/json", "If-None-Match": etag, "Gpushare-Key": encodeURIComponent(key) };
    if (token) headers.Authorization = `Bearer ${token}`;
    const answer = await fetch("picture", { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    const body = answer.status === 304 ? "" : await answer.text();
    if (mine !== round) return;
    if (answer.status === 401 && answer.headers.get("WWW-Authenticate") === "Bearer") {
      signIn("");
      if (received !== null) return location.reload(); // nothing stays of what somebody else may not see
      connected(false, body.trim());
      askForToken(true);
      return; // until there is one
    }
    if (answer.status === 401) connected(false, "Your session has ended: load the page again.");
    else if (answer.status === 403 && token && received !== null) return location.reload();
    else if (answer.status === 403 || answer.status === 503) {
      connected(false, body.trim());
      find("#sign-out").hidden = !token;
      takeKey(); // another tab may have got a newer one
    } else if (answer.ok || answer.status === 304) {
      if (body) {
        etag = answer.headers.get("ETag") ?? "";
        take(body.split("\n"));
      }
      askForToken(false);
      if (body || answer.status === 304) received = new Date().toISOString(); // else the picture is not drawn yet
      connected(received !== null);
    } else connected(false);
  } catch {
    if (mine !== round) return;
    connected(false);
  }
  asking = false;
  again = setTimeout(poll, document.hidden ? HIDDEN_MS : POLL_MS);
}

function connected(good, why = "") {
  const line = find("#connection");
  line.classList.toggle("lost", !good && received !== null);
  let words = "Live";
  if (!good && received === null) words = why || "Reading the cluster …";
  else if (!good) words = `Not connected; this is the state of ${clock(received)}. ${why || "Trying again …"}`;
  if (line.textContent !== words) line.textContent = words;
}

function take(sent) {
  const before = lines;
  const named = new Set();
  lines = new Map();
  for (const line of sent.slice(3)) {
    let name = before.get(line);
    if (name === undefined) {
      const node = JSON.parse(line);
      name = node.name;
      nodes.set(name, node);
      dirty.add(name);
    }
    lines.set(line, name);
    named.add(name);
  }
  for (const name of nodes.keys()) {
    if (named.has(name)) continue;
    nodes.delete(name);
    dirty.add(name);
  }
  const changed = about.map((line, i) => (line === sent[i] ? null : JSON.parse(sent[i])));
  about = sent.slice(0, 3);
  if (changed[0]) takeOverview(changed[0]);
  if (changed[1]) {
    waiting = changed[1];
    drawWaiting();
  }
  if (changed[2]) {
    happenings = changed[2];
    drawHappenings();
  }
  schedule();
}

function takeOverview(latest) {
  const unsure = overview !== null && overview.complete !== latest.complete;
  overview = latest;
  if (unsure) redraw();
  document.title = `${overview.totals.waiting ? `(${overview.totals.waiting}) ` : ""}gpushare${overview.server ? ` · ${overview.server}` : ""}`;
  find("#server").textContent = overview.server ? `of ${overview.server}` : "";
  find("#totals").replaceChildren(...totals(overview));
  find("#notes").replaceChildren(...notes(overview));
}

// Drawing.

function schedule() {
  if (!frame) frame = requestAnimationFrame(draw);
}

function draw() {
  frame = 0;
  const all = [...nodes.values()].reduce((sum, node) => sum + node.cards.length, 0);
  groupsElement.classList.toggle("dense", all > MANY);
  const until = performance.now() + STEP_MS;
  for (const name of dirty) {
    dirty.delete(name);
    drawNode(name);
    if (performance.now() > until) break;
  }
  if (dirty.size) {
    schedule();
    return;
  }
  tidy();
  if (etag) document.body.dataset.version = etag.replaceAll('"', ""); // drawn up to here
}

function redraw() {
  entries.clear();
  groups.clear();
  groupsElement.replaceChildren();
  for (const name of nodes.keys()) dirty.add(name);
  schedule();
}

function drawNode(name) {
  drawn = true;
  const node = nodes.get(name);
  const old = new Set(keys.get(name));
  for (const card of node?.cards ?? []) {
    const key = `${name} ${card.uuid}`;
    old.delete(key);
    drawCard(key, node, card);
  }
  keys.set(name, new Set((node?.cards ?? []).map((card) => `${name} ${card.uuid}`)));
  for (const key of old) {
    entries.get(key).item.remove();
    entries.delete(key);
  }
}

function drawCard(key, node, card) {
  const mixed = node.cards.some((other) => other.model !== node.cards[0].model);
  const text = JSON.stringify([card, node.known, mixed, overview?.complete]);
  let entry = entries.get(key);
  if (entry && entry.text === text) {
    entry.node = node;
    entry.card = card;
    return;
  }
  if (entry && filter.group === "model" && entry.card.model !== card.model) {
    entry.item.remove();
    entries.delete(key);
    entry = undefined;
  }
  if (!entry) {
    const button = element("button", { type: "button", tabindex: "-1" });
    button.dataset.key = key;
    entry = { item: element("li", {}, button), button };
    entries.set(key, entry);
    place(entry, node, card);
  }
  Object.assign(entry, { node, card, text, haystack: haystack(node, card) });
  dressCard(entry.button, node, card, { byModel: filter.group === "model", complete: overview?.complete ?? true, mixed });
  entry.shown = matches(entry, filter);
  show(entry);
  if (key === opened) details(dialog, node, card);
}

function place(entry, node, card) {
  const byModel = filter.group === "model";
  const heading = byModel ? card.model : node.name;
  const { list } = group(heading);
  const order = byModel ? `${node.name} ${card.label.padStart(8, "0")}` : card.label.padStart(8, "0");
  entry.item.dataset.order = order;
  let next = list.lastElementChild;
  while (next && next.dataset.order > order) next = next.previousElementSibling;
  if (next) next.after(entry.item);
  else list.prepend(entry.item);
}

function group(heading) {
  if (!groups.has(heading)) {
    const id = `group-${groups.size}-${Math.random().toString(36).slice(2, 8)}`;
    const line = element("span");
    const list = element("ul", { role: "list" });
    const title = element("header", {}, element("h3", { id }, heading), line);
    const section = element("section", { class: "group", "aria-labelledby": id }, title, list);
    section.dataset.heading = heading;
    groups.set(heading, { section, line, list });
    let next = groupsElement.lastElementChild;
    while (next && next.dataset.heading > heading) next = next.previousElementSibling;
    if (next) next.after(section);
    else groupsElement.prepend(section);
  }
  return groups.get(heading);
}

// What is known only when all nodes are drawn, or when a filter has changed.

function tidy() {
  const sums = summed();
  let shown = 0;
  for (const [heading, { section, line }] of groups) {
    const sum = sums.get(heading);
    if (!sum) {
      section.remove();
      groups.delete(heading);
      continue;
    }
    if (section.hidden !== (sum.shown === 0)) section.hidden = sum.shown === 0;
    if (sum.shown) sum.entries.forEach(show); // what is in a hidden group may wait
    if (drawn) describe(line, sum);
    shown += sum.shown;
  }
  const words = shown === entries.size ? count(shown, "GPU") : `${count(shown, "GPU")} of ${grouped(entries.size)}`;
  if (find("#shown").textContent !== words) find("#shown").textContent = words;
  if (drawn) {
    choices("#namespace", [...entries.values()].flatMap((entry) => entry.card.blocks.map((block) => [block.namespace, block.granted_mib])));
    choices("#model", [...entries.values()].map((entry) => [entry.card.model, entry.card.granted_mib]));
  }
  drawn = false;
  reachable();
  if (opened && !entries.has(opened)) dialog.close();
}

function summed() {
  const sums = new Map();
  for (const entry of entries.values()) {
    const heading = filter.group === "model" ? entry.card.model : entry.node.name;
    let sum = sums.get(heading);
    if (!sum) sums.set(heading, (sum = { node: entry.node, granted: 0, total: 0, shown: 0, entries: [] }));
    sum.granted += entry.card.granted_mib;
    sum.total += entry.card.total_mib;
    sum.shown += entry.shown ? 1 : 0;
    sum.entries.push(entry);
  }
  return sums;
}

function show(entry) {
  if (entry.item.hidden === entry.shown) entry.item.hidden = !entry.shown;
}

function describe(line, sum) {
  const facts = [`${sum.total ? share(sum.granted, sum.total) : memory(sum.granted)} granted`];
  if (filter.group === "node") facts.push(...aboutNode(sum.node));
  const words = facts.filter(Boolean).join(" · ");
  if (line.textContent !== words) line.textContent = words;
}

function aboutNode(node) {
  const floating = node.floating.map((pod) => `${pod.namespace}/${pod.name}: ${memory(pod.mib)} on no known GPU`);
  const models = new Set(node.cards.map((card) => card.model));
  const claimed = node.claimed.length ? `${node.claimed.length} more shared by ResourceClaims` : "";
  return [models.size === 1 ? node.cards[0].model : "", node.address === "unknown" ? "" : node.address, ...floating, ...node.left_out, claimed];
}

/** @param {[string, number][]} granted what can be chosen, with MiB, which are added up */
function choices(selector, granted) {
  const select = find(selector);
  const sums = new Map();
  for (const [value, mib] of granted) sums.set(value, (sums.get(value) ?? 0) + mib);
  const chosen = filter[select.id];
  if (chosen && !sums.has(chosen)) sums.set(chosen, 0);
  const wanted = [...sums.keys()].sort();
  const known = [...select.options].slice(1);
  if (wanted.length !== known.length || wanted.some((value, i) => value !== known[i].value)) {
    select.replaceChildren(select.options[0], ...wanted.map((value) => element("option", { value })));
    select.value = chosen;
  }
  for (const option of [...select.options].slice(1)) {
    const text = `${option.value}: ${memory(sums.get(option.value))} granted`;
    if (option.textContent !== text) option.textContent = text;
  }
}

function drawWaiting() {
  find("#waiting tbody").replaceChildren(...waiting.map(waitingRow));
  const told = waiting.reduce((sum, pod) => sum + 1 + pod.others, 0);
  const rest = (overview?.totals.waiting ?? told) - told;
  find("#waiting p").textContent = rest > 0 ? `${count(rest, "more pod")} that came later.` : "";
  showWaiting();
}

function showWaiting() {
  find("#waiting").hidden = !showRows("#waiting tbody", waiting, (pod) => [pod.namespace, `${pod.namespace}/${pod.name} ${pod.asks} ${pod.reason}`]);
}

function drawHappenings() {
  const none = element("li", {}, "Nothing that is known.");
  find("#happenings ol").replaceChildren(...happenings.map(happening), none);
  showHappenings();
}

function showHappenings() {
  const some = showRows("#happenings ol", happenings, (each) => [each.subject.split("/")[0], `${each.subject} ${each.text}`]);
  const none = find("#happenings ol").lastElementChild;
  if (none) none.hidden = some;
}

/** Hides the rows of what the filters leave out, of which `about` tells the namespace and the words. Whether one is left. */
function showRows(selector, all, about) {
  const rows = find(selector).children;
  let some = false;
  for (const [i, each] of all.entries()) {
    const [namespace, text] = about(each);
    const shown = (!filter.namespace || namespace === filter.namespace) && said(text);
    if (rows[i].hidden === shown) rows[i].hidden = !shown;
    some ||= shown;
  }
  return some;
}

function said(text) {
  const low = text.toLowerCase();
  return filter.words.every((word) => low.includes(word));
}

// Filters, which the address keeps.

function read() {
  const before = filter.group;
  filter = Object.fromEntries(inputs.map((id) => [id, find(`#${id}`).value]));
  filter.words = filter.search.toLowerCase().split(/\s+/).filter(Boolean);
  clearTimeout(remembered);
  remembered = setTimeout(remember, location.hash.includes("key=") ? 0 : 300); // browsers allow some three a second
  if (filter.group !== before) {
    redraw();
  } else {
    for (const entry of entries.values()) entry.shown = matches(entry, filter);
    schedule();
  }
  showWaiting();
  showHappenings();
}

let asked = false;

/** Reads them after what was typed is on the screen; what is typed meanwhile is read with it. */
function ask() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() =>
    setTimeout(() => {
      asked = false;
      read();
    }),
  );
}

let remembered = 0; // a timer

function remember() {
  const kept = new URLSearchParams(inputs.filter((id) => filter[id] && !(id === "group" && filter[id] === "node")).map((id) => [id, filter[id]]));
  history.replaceState(null, "", `${location.pathname}${kept.size ? `#${kept}` : ""}`);
}

function restore() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const id of inputs) {
    const input = find(`#${id}`);
    const value = kept.get(id);
    if (value === null) continue;
    if (input.tagName === "SELECT" && ![...input.options].some((option) => option.value === value)) {
      if (id !== "namespace" && id !== "model") continue;
      input.append(element("option", { value }, value));
    }
    input.value = value;
  }
}

// Keys.

function cards() {
  return [...groupsElement.querySelectorAll(".group:not([hidden]) li:not([hidden]) > .card")];
}

function reachable() {
  if (current?.isConnected && !current.closest("[hidden]")) return;
  if (current) current.tabIndex = -1;
  current = groupsElement.querySelector(".group:not([hidden]) li:not([hidden]) > .card");
  if (current) current.tabIndex = 0;
}

function go(card) {
  if (!card) return;
  if (current) current.tabIndex = -1;
  current = card;
  card.tabIndex = 0;
  card.focus();
  card.scrollIntoView({ block: "nearest" });
}

function columns(card) {
  return getComputedStyle(card.closest("ul")).gridTemplateColumns.split(" ").length;
}

function onKey(event) {
  if (event.key === "/" && !event.target.closest("input, select, dialog")) {
    event.preventDefault();
    find("#search").focus();
    return;
  }
  if (event.key === "Escape" && event.target.id === "search") {
    event.preventDefault(); // it would forget what was typed
    if (current) go(current);
    else event.target.blur();
    return;
  }
  const card = event.target.closest?.(".card");
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target === document.body && (event.key === "ArrowRight" || event.key === "ArrowLeft")) go(current);
  if (!card) return;
  const all = cards();
  const at = all.indexOf(card);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(card), ArrowUp: -columns(card), Home: -at, End: all.length - 1 - at };
  if (!(event.key in steps)) return;
  event.preventDefault();
  go(all[Math.min(Math.max(at + steps[event.key], 0), all.length - 1)]);
}

function onClick(event) {
  const card = event.target.closest(".card");
  if (!card) return;
  opened = card.dataset.key;
  const entry = entries.get(opened);
  details(dialog, entry.node, entry.card);
  if (current !== card) {
    if (current) current.tabIndex = -1;
    current = card;
    card.tabIndex = 0;
  }
  dialog.showModal();
}

// Light and dark.

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  find("#theme").textContent = `Theme: ${name}`;
  keep("theme", name);
}

takeKey();
restore();
read();
theme(THEMES.includes(recall("theme")) ? recall("theme") : "system");
for (const id of inputs) find(`#${id}`).addEventListener("input", id === "search" ? ask : read);
find("#theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
find("#sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(find("#token").value.trim());
  find("#token").value = "";
  poll();
});
find("#sign-out").addEventListener("click", () => {
  signIn("");
  location.reload();
});
document.addEventListener("keydown", onKey);
groupsElement.addEventListener("click", onClick);
dialog.addEventListener("close", () => {
  opened = null;
});
addEventListener("hashchange", () => {
  const before = key;
  takeKey();
  restore();
  read();
  if (key !== before) poll();
});
document.addEventListener("visibilitychange", () => document.hidden || asking || poll());
setInterval(grow, 10000);
poll();
