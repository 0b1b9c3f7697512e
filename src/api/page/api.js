// The API client: requests, errors, the event stream, and the token.

const KEY = "clientapp-token";
/** Timeout of a request: longer than the 45 s after which the server says that it has too much to do. */
const ANSWER_MS = 60000;
/** The stream sends a keep-alive every 15 s. */
const SILENCE_MS = 40000;
let askForToken = () => Promise.resolve(null);
let asking = null;

/** An RFC 9457 problem, or one in that format if the API does not respond. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The API responds with status ${status}.`);
    this.status = status;
    this.reason = body.reason;
    this.field = body.field;
  }
}

/** Sets the function that asks the user for a token: it gets the problem, and returns a promise of a token or null. */
export function onUnauthorized(ask) {
  askForToken = ask;
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** The path of one instance. */
export const path = ({ namespace, name }, rest = "") =>
  `instances/${encodeURIComponent(name)}${rest}?namespace=${encodeURIComponent(namespace)}`;

/** The successful response to a request; throws a Problem otherwise. */
export async function send(method, url, { body, headers = {}, signal } = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), ANSWER_MS);
    let response;
    try {
      const options = { method, body, cache: "no-store", headers: { ...headers, ...authorization } };
      response = await fetch(url, { ...options, signal: AbortSignal.any([late.signal, ...(signal ? [signal] : [])]) });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem(0, { detail: "The API does not respond." });
    } finally {
      clearTimeout(timer);
    }
    if (response.ok) return response;
    const problem = new Problem(response.status, await response.json().catch(() => ({})));
    if (response.status !== 401) throw problem;
    // Concurrent requests share one prompt.
    asking ??= askForToken(token === null ? null : problem).finally(() => (asking = null));
    const given = await asking;
    if (given === null) throw problem;
    sessionStorage.setItem(KEY, given);
  }
}

/** The JSON of a response. */
export const get = async (url, options) => (await send("GET", url, options)).json();

/** Server-sent events as {event, data}. EventSource could not send the token. */
export async function* stream(url, signal) {
  const response = await send("GET", url, { signal, headers: { accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    // A connection that broke silently would look idle.
    const silent = setTimeout(() => void reader.cancel(), SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silent));
    if (done) return;
    text += value;
    const messages = text.split(/\r?\n\r?\n/);
    text = messages.pop();
    for (const message of messages) {
      const event = { event: "message", data: "" };
      for (const line of message.split(/\r?\n/)) {
        const [, field, rest] = /^(\w*): ?(.*)$/.exec(line) ?? [];
        if (field === "event") event.event = rest;
        if (field === "data") event.data += rest;
      }
      // A comment only keeps the connection open.
      if (event.data !== "") yield { event: event.event, data: JSON.parse(event.data) };
    }
  }
}

/** A key that makes one attempt safe to repeat. randomUUID exists only over https. */
export const attemptKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
