// Values -> elements. Text only ever becomes text: a pod's author decides what many of these values are.
import { age, amounts, brief, clock, count, day, gib, grouped, isOver, memory, percent, sentence, share } from "./words.js";

export function element(kind, properties = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function time(stamp, words) {
  return stamp ? element("time", { datetime: stamp, title: day(stamp) }, words(stamp)) : "";
}

/** How long ago, which goes on to be true: see `grow`. */
function since(stamp) {
  const made = time(stamp, age);
  if (made) made.className = "age";
  return made;
}

export function grow() {
  for (const made of document.querySelectorAll("time.age")) made.textContent = age(made.dateTime);
}

const looks = new Map(); // namespace -> its number, in the order in which they came
const LOOKS = 12; // six colours, plain and striped

function look(namespace) {
  if (!looks.has(namespace)) looks.set(namespace, looks.size % LOOKS);
  const number = looks.get(namespace);
  return `c${number % 6}${number > 5 ? " striped" : ""}`;
}

function bar(card, complete) {
  const scale = Math.max(card.total_mib, card.grantable_mib, card.granted_mib, 1);
  const made = element("div", { class: complete ? "bar" : "bar unsure", "aria-hidden": "true" });
  for (const block of card.blocks) {
    const part = element("span", { class: `block ${look(block.namespace)}` }, block.name);
    part.title = `${block.namespace}/${block.name}: ${memory(block.granted_mib)}`;
    part.style.setProperty("--part", String(block.granted_mib / scale));
    if (block.used_mib !== null) {
      const use = element("i", isOver(block) ? { class: "over" } : {});
      use.style.setProperty("--use", String(Math.min(1, block.used_mib / Math.max(block.granted_mib, 1))));
      part.append(use);
    }
    made.append(part);
  }
  return made;
}

export function cardContent(node, card, { byModel, complete, mixed }) {
  const name = byModel ? `${node.name} GPU ${card.label}` : `GPU ${card.label}`;
  const over = card.blocks.some(isOver);
  const use = card.used_mib === null ? "" : element("span", { class: "use" }, ", ", element("span", over ? { class: "more" } : {}, `${gib(card.used_mib)} used`));
  const strength = { class: card.strength.split(" ")[0].replace("after", "afterwards") };
  const found = [
    element("div", { class: "top" }, element("b", {}, name), node.known ? element("span", strength, card.strength) : ""),
    bar(card, complete),
    element(
      "div",
      { class: "bottom" },
      element("span", {}, brief(card), use),
      mixed && !byModel ? element("span", {}, card.model) : "",
    ),
  ];
  if (card.why) found.push(element("div", { class: "why" }, `⚠ ${card.why}`));
  return found;
}

export function dressCard(button, node, card, options) {
  const state = card.health === "Healthy" ? "" : ` faulty ${card.health.toLowerCase()}`;
  button.className = `card${state}`;
  button.setAttribute("aria-label", sentence(node, card));
  button.replaceChildren(...cardContent(node, card, options));
}

export function totals(overview) {
  const all = overview.totals;
  const pairs = [
    ["GPUs", `${grouped(all.gpus)} on ${count(all.nodes, "node")}`],
    ["Granted", all.total_mib ? `${share(all.granted_mib, all.total_mib)} (${percent(all.granted_mib, all.total_mib)})` : memory(all.granted_mib)],
    ["Used", all.used_mib === null ? "not measured" : memory(all.used_mib)],
    ["Pods", grouped(all.pods)],
    ["Waiting", grouped(all.waiting)],
  ];
  if (all.unhealthy) pairs.push(["Out of use", count(all.unhealthy, "GPU")]);
  return pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

export function notes(overview) {
  const said = [overview.stale, overview.scope, ...overview.notes].filter(Boolean);
  return said.map((note) => element("p", {}, note));
}

export function waitingRow(pod) {
  const others = pod.others ? ` and ${grouped(pod.others)} more of its owner` : "";
  return element(
    "tr",
    {},
    element("td", { class: "subject" }, `${pod.namespace}/${pod.name}${others}`),
    element("td", {}, pod.asks),
    element("td", {}, element("b", {}, pod.headline), element("br"), pod.reason),
    element("td", {}, since(pod.since)),
  );
}

export function happening(each) {
  return element(
    "li",
    each.warning ? { class: "warning" } : {},
    time(each.at, clock),
    element("b", { class: "text" }, each.subject),
    element("span", {}, each.text),
  );
}

export function details(dialog, node, card) {
  const facts = [
    ["Model", card.model],
    ["UUID", card.uuid],
    ["Memory", `${amounts(card)} granted${card.used_mib === null ? "" : `, ${memory(card.used_mib)} used`}`],
    ...(card.grantable_mib ? [["Oversubscribed", `up to ${memory(card.grantable_mib)} may be granted`]] : []),
    ["Compute", card.compute_percent ? `${card.compute_percent} % set aside` : "shared"],
    ["Health", card.why || "healthy"],
  ];
  if (node.known) facts.push(["Limit", `${card.limit === card.strength ? card.limit : `${card.limit}: ${card.strength}`}${card.limit_reason ? `; no stronger one: ${card.limit_reason}` : ""}`]);
  if (node.use_problem) facts.push(["Use", `not measured: ${node.use_problem}`]);
  dialog.querySelector("h2").textContent = `GPU ${card.label} of ${node.name}`;
  dialog.querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  dialog.querySelector("tbody").replaceChildren(
    ...card.blocks.map((block) =>
      element(
        "tr",
        {},
        ...[
          block.namespace,
          block.name,
          block.whole ? `${memory(block.granted_mib)} (whole GPU)` : memory(block.granted_mib),
          block.used_mib === null ? "?" : `${isOver(block) ? "⚠ " : ""}${memory(block.used_mib)}`,
          block.compute_percent ? `${block.compute_percent} %` : "",
          block.limit,
        ].map((cell) => element("td", {}, cell)),
        element("td", {}, since(block.since)),
      ),
    ),
  );
  dialog.querySelector("p").textContent = card.blocks.length ? "More about a pod: gpushare explain NAMESPACE/POD" : "No pod holds anything of it.";
}
