// Shared by the views: elements, times, states. Users' input becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const by = (id) => document.getElementById(id);

/** An element with properties and children; null children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces an element's children unless they are the same, which keeps the focus and does not interrupt screen readers. */
export function fill(element, ...children) {
  const next = make("div", {}, ...children);
  if (element.innerHTML !== next.innerHTML) element.replaceChildren(...next.childNodes);
}

/** Announces a text to screen readers. */
export function announce(text) {
  by("announcer").textContent = text;
}

/** Shows an error, or hides it. */
export function tell(element, problem) {
  element.hidden = problem === null;
  element.textContent = problem === null ? "" : problem.message;
}

/** A shape of index.html. */
function shape(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#shape-${name}`);
  svg.append(use);
  return svg;
}

/** A state as word, shape and tone. */
export function pill(word, form, tone) {
  return make("span", { className: `pill ${tone} ${form}` }, shape(form), word);
}

/** The state of an instance in one word, with its shape and tone. */
export function stateOf(instance) {
  if (instance.deleting) return ["Deleting", "leaving", "idle"];
  if (instance.suspended) return ["Suspended", "paused", "idle"];
  if (instance.stalled) return ["Stalled", "stalled", "bad"];
  if (instance.ready === "True") return instance.reconciling ? ["Updating", "busy", "info"] : ["Ready", "ready", "good"];
  if (instance.reconciling) return ["In progress", "busy", "info"];
  if (instance.ready === "False") return ["Not ready", "waiting", "warn"];
  return ["Unknown", "unknown", "idle"];
}

/** A condition's status as a pill. Reconciling and Stalled are healthy when False. */
export function conditionPill({ type, status }) {
  if (status === "Unknown") return pill(status, "unknown", "idle");
  if (type === "Reconciling") return status === "True" ? pill(status, "busy", "info") : pill(status, "leaving", "idle");
  if (type === "Stalled") return status === "True" ? pill(status, "stalled", "bad") : pill(status, "leaving", "idle");
  return status === "True" ? pill(status, "ready", "good") : pill(status, "waiting", "warn");
}

/** The database in a word. */
export function databaseOf({ database }) {
  if (!database?.provider) return "None";
  if (database.ready === true || database.ready === "True") return "Ready";
  return database.reason || "Not ready";
}

/** The hostname, as a link once it is served. */
export function host({ hostname, url }) {
  if (!/^https?:\/\//.test(url ?? "")) return hostname || "–";
  return make("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, hostname);
}

/** A time relative to now, with the absolute time as its title; `ago` is for use within a sentence. */
export function since(time, ago = false) {
  if (!time) return "–";
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const [size, unit] = units.find(([size]) => seconds >= size) ?? [1, "s"];
  // Seconds in steps of ten, so that the page does not tick.
  const count = size === 1 ? Math.floor(seconds / 10) * 10 : Math.floor(seconds / size);
  const text = size === 1 && count === 0 ? (ago ? "just now" : "now") : `${count} ${unit}${ago ? " ago" : ""}`;
  return make("time", { dateTime: time, title: new Date(time).toLocaleString() }, text);
}

/** The hash of one instance. */
export const link = ({ namespace, name }) => `#/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

/** Opens a dialog, and returns its parts; its buttons of class close, and Escape, close it. */
export function open(dialog) {
  for (const button of dialog.querySelectorAll(".close")) button.onclick = () => dialog.close();
  dialog.showModal();
}
