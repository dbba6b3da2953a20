// Values -> words. No function here touches the page.

const whole = new Intl.NumberFormat("en"); // made once: toLocaleString makes one at every call
const time = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function grouped(number) {
  return whole.format(number);
}

/** @param {number} mib */
export function memory(mib) {
  return `${gib(mib)} GiB`;
}

/** The number alone. */
export function gib(mib) {
  const found = mib / 1024;
  if (found < 1) return String(Number(found.toFixed(2)));
  return Number.isInteger(found) || found >= 1000 ? grouped(Math.round(found)) : found.toFixed(1);
}

export function share(mib, whole) {
  return `${gib(mib)} of ${memory(whole)}`;
}

export function percent(part, whole) {
  return whole ? `${Math.floor((part * 100) / whole)} %` : "";
}

export function count(number, word) {
  return `${grouped(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function clock(stamp) {
  const at = new Date(stamp);
  return Number.isNaN(at.getTime()) ? "" : time.format(at);
}

export function day(stamp) {
  const at = new Date(stamp);
  if (Number.isNaN(at.getTime())) return "";
  return at.toDateString() === new Date().toDateString() ? clock(stamp) : at.toLocaleString([], { dateStyle: "short", timeStyle: "short" });
}

const AGES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** How long ago, in the largest unit. */
export function age(stamp) {
  const seconds = Math.max(0, Math.floor((Date.now() - new Date(stamp).getTime()) / 1000));
  const [size, unit] = AGES.find(([size]) => seconds >= size) ?? AGES[3];
  return Number.isNaN(seconds) ? "" : `${Math.floor(seconds / size)} ${unit}`;
}

/** In a card, where there is little room. */
export function brief(card) {
  return card.total_mib ? share(card.granted_mib, card.total_mib) : amounts(card);
}

export function amounts(card) {
  if (!card.total_mib) return `${memory(card.granted_mib)} held, size not known`;
  const granted = share(card.granted_mib, card.total_mib);
  return card.grantable_mib ? `${granted} (${percent(card.granted_mib, card.total_mib)}, up to ${percent(card.grantable_mib, card.total_mib)})` : granted;
}

export function isOver(block) {
  return block.used_mib !== null && block.used_mib > block.granted_mib;
}

/** All that a screen reader is told about a GPU. */
export function sentence(node, card) {
  const said = [
    `GPU ${card.label} of ${node.name}, ${card.model}: ${amounts(card)} granted to ${count(card.blocks.length, "pod")}`,
  ];
  if (card.used_mib !== null) said.push(`${memory(card.used_mib)} used`);
  if (card.blocks.some(isOver)) said.push("a pod uses more than it was granted");
  if (node.known) said.push(`limits are ${card.strength}`);
  said.push(card.why || "healthy");
  return said.join("; ");
}

/** What a search looks at. */
export function haystack(node, card) {
  const pods = card.blocks.map((block) => `${block.namespace}/${block.name}`);
  return [node.name, node.address, card.model, card.uuid, `gpu${card.label}`, card.limit, card.strength, card.why, ...pods].join(" ").toLowerCase();
}

/** Whether a GPU is to be shown. */
export function matches(entry, filter) {
  const { card } = entry;
  if (filter.model && card.model !== filter.model) return false;
  if (filter.namespace && !card.blocks.some((block) => block.namespace === filter.namespace)) return false;
  const room = Math.max(card.grantable_mib, card.total_mib) > card.granted_mib && card.health === "Healthy" && !card.blocks.some((block) => block.whole);
  if (filter.which === "room" && !room) return false;
  if (filter.which === "empty" && card.blocks.length) return false;
  if (filter.which === "over" && !card.blocks.some(isOver)) return false;
  if (filter.which === "faulty" && card.health === "Healthy") return false;
  return filter.words.every((word) => entry.haystack.includes(word));
}
