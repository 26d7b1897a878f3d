// Talking to the server: requests with a key, errors in one form, events over a plain fetch.
// Knows the HTTP routes. Does not know the page.
'use strict';

const HyMotionCalls = (() => {
  const KEY = 'hymotion.key';
  const stores = () => [sessionStorage, localStorage];

  // An answer that is no success. kind: key, invalid, busy, away, gone, lost, failed.
  class CallError extends Error {
    constructor(kind, message, { status = 0, code = '', retryAfter = null, fields = {} } = {}) {
      super(message);
      Object.assign(this, { kind, status, code, retryAfter, fields });
    }
  }

  function key() {
    try {
      return stores().map((store) => store.getItem(KEY)).find(Boolean) ?? '';
    } catch { return ''; } // a browser without storage
  }

  function setKey(value, keep) {
    try {
      for (const store of stores()) store.removeItem(KEY);
      if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
    } catch { /* a browser without storage: the key lasts as long as nothing */ }
  }

  const KINDS = { 401: 'key', 403: 'key', 404: 'gone', 410: 'gone', 413: 'invalid', 422: 'invalid', 429: 'busy', 503: 'away' };

  // The parts of a server's error: { error: { code, message, fields: [{ field, message }] } }.
  async function errorOf(answer) {
    const body = await answer.json().catch(() => null);
    const detail = body?.error;
    const fields = {};
    for (const { field, message } of detail?.fields ?? []) fields[field.split('.')[0] || 'text'] ??= message;
    const seconds = Number(answer.headers.get('Retry-After'));
    return new CallError(KINDS[answer.status] ?? 'failed', detail?.message || `The server answered ${answer.status}.`, {
      status: answer.status, code: detail?.code ?? '', retryAfter: Number.isFinite(seconds) && seconds > 0 ? seconds : null, fields,
    });
  }

  async function call(path, { method = 'GET', body, accept, headers = {}, signal } = {}) {
    const sent = { ...headers };
    if (key()) sent.Authorization = `Bearer ${key()}`;
    if (accept) sent.Accept = accept;
    if (body !== undefined) sent['Content-Type'] = 'application/json';
    let answer;
    try {
      answer = await fetch(path, { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: 'no-store' });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new CallError('lost', 'The server cannot be reached.');
    }
    if (!answer.ok) throw await errorOf(answer);
    return answer;
  }

  const json = async (path, options) => (await call(path, options)).json();
  const jobPath = (id) => `v1/motions/${encodeURIComponent(id)}`;

  const submit = (id, request) => json(jobPath(id), { method: 'PUT', body: request, headers: { Prefer: 'respond-async' } });
  const job = (id) => json(jobPath(id));
  const cancel = (id) => json(`${jobPath(id)}/cancel`, { method: 'POST' });
  const models = () => json('v1/models');

  // The content of a result and the name to save it under; clip: a number, or all of them.
  async function result(id, format, clip) {
    const query = new URLSearchParams({ format });
    if (clip !== undefined) query.set('clip', clip);
    const answer = await call(`${jobPath(id)}/result?${query}`);
    const name = /filename="([^"]+)"/.exec(answer.headers.get('Content-Disposition') ?? '')?.[1] ?? `${id}.${format}`;
    return { answer, name };
  }

  // null: ready; else why not.
  async function readiness() {
    try {
      const answer = await fetch('readyz', { cache: 'no-store' });
      if (answer.ok) return { state: 'ready', reason: '' };
      const body = await answer.json().catch(() => null);
      return { state: 'starting', reason: body?.reason || body?.error?.message || 'not ready' };
    } catch {
      return { state: 'away', reason: 'no connection' };
    }
  }

  // Calls onEvent with each event's data until the server ends the stream; EventSource cannot send
  // a key. Throws a CallError when the stream cannot be opened or breaks.
  async function follow(id, onEvent, signal) {
    const answer = await call(`${jobPath(id)}/events`, { accept: 'text/event-stream', signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = '';
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new CallError('lost', 'The connection to the server was lost.');
      }
      if (part.done) return;
      pending += part.value.replace(/\r\n?/g, '\n');
      const events = pending.split('\n\n');
      pending = events.pop();
      for (const text of events) {
        const data = text.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5)).join('\n');
        if (data) onEvent(JSON.parse(data));
      }
    }
  }

  return { CallError, key, setKey, submit, job, cancel, models, result, readiness, follow };
})();
