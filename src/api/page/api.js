// The way to the API: requests, their refusals, the stream of events, and the token.

const KEY = "clientapp-token";
/** An answer that takes longer does not come any more. */
const ANSWER_MS = 30000;
/** The stream says every 15 s that it is there. */
const SILENCE_MS = 40000;
let askForToken = () => Promise.resolve(null);
let asking = null;

/** A refusal as RFC 9457 has it, or one in its shape for an API that does not answer. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The API answers ${status}.`);
    this.status = status;
    this.reason = body.reason;
    this.field = body.field;
  }
}

/** Sets what asks the person for a token: it is given the refusal, and promises a token, or null for none. */
export function onUnauthorized(ask) {
  askForToken = ask;
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** The path of one instance. */
export const path = ({ namespace, name }, rest = "") =>
  `instances/${encodeURIComponent(name)}${rest}?namespace=${encodeURIComponent(namespace)}`;

/** The answer to a request, which is one of success; throws a Problem otherwise. */
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
      throw new Problem(0, { detail: "The API does not answer." });
    } finally {
      clearTimeout(timer);
    }
    if (response.ok) return response;
    const problem = new Problem(response.status, await response.json().catch(() => ({})));
    if (response.status !== 401) throw problem;
    // While one request asks, the others wait for the same answer.
    asking ??= askForToken(token === null ? null : problem).finally(() => (asking = null));
    const given = await asking;
    if (given === null) throw problem;
    sessionStorage.setItem(KEY, given);
  }
}

/** The JSON of an answer. */
export const get = async (url, options) => (await send("GET", url, options)).json();

/** Server-sent events as {event, data}. EventSource could not send the token. */
export async function* stream(url, signal) {
  const response = await send("GET", url, { signal, headers: { accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    // A connection that broke without a word would look like one on which nothing happens.
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

/** A key that makes one attempt safe to repeat. randomUUID is there only over https. */
export const attemptKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
