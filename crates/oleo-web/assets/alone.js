// The page without a server: answers come from a worker with the compiled part, which reads the files that are dropped here. Goes before app.js, which asks `oleo` instead of a server.
"use strict";

const oleo = (() => {
  const get = (id) => document.getElementById(id);
  const decoded = (id) => Uint8Array.from(atob(get(id).textContent), (c) => c.charCodeAt(0));
  let wasm = null, script = null;
  let files = [], worker = null, next = 1;
  // What waits for an answer, in order: the first is being answered.
  let waiting = [];

  function begin() {
    worker = new Worker(script);
    worker.onmessage = ({ data }) => {
      const one = waiting.find((one) => one.id === data.id);
      if (!one) return;
      if (data.head) one.head(data.head);
      if (data.piece) one.piece(new Uint8Array(data.piece));
      if (data.error && !one.error) one.error = data.error;
      if (data.whole === undefined && !data.dead) return;
      waiting = waiting.filter((other) => other !== one);
      one.end(data.whole === true ? null : new Error(one.error || "the answer is not whole"));
      // After a defect nothing works any more.
      if (data.dead && one.address) again();
    };
  }

  function send(one) {
    worker.postMessage(one.address === null ? { id: one.id, wasm, files } : { id: one.id, address: one.address });
  }

  // Starts anew, and asks again what was not answered yet.
  function again() {
    worker.terminate();
    begin();
    const open = { id: next++, address: null, head() {}, piece() {}, end() {} };
    waiting = [open, ...waiting];
    waiting.forEach(send);
  }

  function open(chosen) {
    if (!wasm) {
      wasm = decoded("wasm");
      script = URL.createObjectURL(new Blob([get("worker").textContent], { type: "text/javascript" }));
    }
    if (worker) worker.terminate();
    files = [...chosen];
    waiting = [];
    begin();
    return new Promise((resolve, reject) => {
      const one = { id: next++, address: null, head() {}, piece() {}, end: (error) => (error ? reject(error) : resolve()) };
      waiting.push(one);
      send(one);
    });
  }

  // As of a server.
  function fetch(address, options) {
    return new Promise((resolve, reject) => {
      let stream = null, begun = false;
      const one = {
        id: next++,
        address,
        head(head) {
          const body = new ReadableStream({
            start(controller) { stream = controller; },
            cancel() { abort(); },
          });
          const headers = { "content-type": head.kind };
          if (head.name) headers["x-name"] = head.name;
          begun = true;
          resolve(new Response(body, { status: head.status, headers }));
        },
        piece(bytes) { stream.enqueue(bytes); },
        end(error) {
          if (!begun) reject(error || new Error("no answer"));
          else if (error) stream.error(error);
          else stream.close();
        },
      };
      // Nobody wants it any more. What is being answered can only be ended with its worker.
      function abort() {
        if (!waiting.includes(one)) return;
        const is_first = waiting[0] === one;
        waiting = waiting.filter((other) => other !== one);
        const error = new DOMException("not wanted any more", "AbortError");
        if (!begun) reject(error); else { try { stream.error(error); } catch { /* It was cancelled. */ } }
        if (is_first) again();
      }
      if (options && options.signal) options.signal.addEventListener("abort", abort);
      waiting.push(one);
      send(one);
    });
  }

  // A percent-encoded name; one that is no text stays as it is.
  function plain(name) {
    try { return decodeURIComponent(name); } catch { return name; }
  }

  // An answer as a file of the browser's, put together from pieces that it need not keep in memory.
  async function file(address) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(await answer.text());
    const reader = answer.body.getReader();
    let parts = [], bytes = 0, blobs = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      bytes += value.length;
      if (bytes >= 64 << 20) { blobs.push(new Blob(parts)); parts = []; bytes = 0; }
    }
    const type = answer.headers.get("content-type");
    return { blob: new Blob([...blobs, ...parts], { type }), name: plain(answer.headers.get("x-name") || "file") };
  }

  // A link that saves what is at an address.
  function link(a, address, failed) {
    a.href = "#";
    a.onclick = (event) => {
      event.preventDefault();
      file(address).then(({ blob, name }) => {
        const url = URL.createObjectURL(blob);
        const saved = document.createElement("a");
        saved.href = url;
        saved.download = name;
        saved.click();
        setTimeout(() => URL.revokeObjectURL(url), 60000);
      }).catch(failed);
    };
    return a;
  }

  function picture(img, address, failed) {
    file(address).then(({ blob }) => {
      img.src = URL.createObjectURL(blob);
      img.onload = () => URL.revokeObjectURL(img.src);
    }).catch(failed);
  }

  // What is there only when a volume is open.
  function show(is_open) {
    for (const part of [get("main"), document.querySelector("body > nav"), get("facts")]) part.hidden = !is_open;
  }

  // When files have been dropped or chosen, and opened. Each time the page begins anew.
  let opened = () => {}, count = 0;
  function take(chosen) {
    if (!chosen.length) return;
    const mine = ++count, names = [...chosen].map((file) => file.name).join(", ");
    const status = get("choose-status");
    status.textContent = "opening …";
    status.className = "";
    show(false);
    open(chosen).then(() => {
      if (mine !== count) return;
      status.textContent = names;
      // A path of the volume before means nothing here.
      if (count > 1) history.replaceState(null, "", "#");
      show(true);
      opened();
    }).catch((error) => {
      if (mine !== count) return;
      status.textContent = error.message;
      status.className = "bad";
    });
  }
  show(false);
  get("files").onchange = () => take(get("files").files);
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files); });

  return { fetch, link, picture, whenOpened(call) { opened = call; } };
})();
