// The page without a server: answers come from a worker with the compiled part, which reads the files that are dropped here. Goes before app.js, which asks `oleo` instead of a server.
"use strict";

const oleo = (() => {
  const get = (id) => document.getElementById(id);
  const decoded = (id) => Uint8Array.from(atob(get(id).textContent), (c) => c.charCodeAt(0));
  const unpacked = (id) => new Response(new Blob([decoded(id)]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
  // Compiled once; each worker has it anew.
  let compiled = null, wasm = null, script = null;
  let files = [], next = 1;

  // A worker, and what waits for it, in order: the first is being answered.
  function line() {
    let worker = null, waiting = [];
    const opening = (end) => ({ id: next++, address: null, head() {}, piece() {}, end });
    function begin(end) {
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
      // What waited before is asked again.
      waiting = [opening(end), ...waiting];
      waiting.forEach(send);
    }
    function send(one) {
      worker.postMessage(one.address === null ? { id: one.id, wasm, files } : { id: one.id, address: one.address });
    }
    function again() {
      worker.terminate();
      begin(() => {});
    }
    return {
      open: begin,
      ask(one) {
        if (!worker) begin(() => {});
        waiting.push(one);
        send(one);
      },
      // What is being answered can only be ended with its worker. Whether it waited.
      drop(one) {
        const at = waiting.indexOf(one);
        waiting = waiting.filter((other) => other !== one);
        if (at === 0) again();
        return at >= 0;
      },
      close() {
        if (worker) worker.terminate();
        [worker, waiting] = [null, []];
      },
    };
  }
  // Nobody has to wait for a check or a map to look at files.
  const quick = line(), slow = line();
  const line_of = (address) => (/^(api\/check|map\.)/.test(address) ? slow : quick);

  async function open(chosen) {
    if (!compiled) {
      script = URL.createObjectURL(new Blob([get("worker").textContent], { type: "text/javascript" }));
      compiled = unpacked("wasm").then((bytes) => WebAssembly.compile(bytes));
    }
    wasm = await compiled;
    quick.close();
    slow.close();
    files = [...chosen];
    return new Promise((resolve, reject) => quick.open((error) => (error ? reject(error) : resolve())));
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
      // Nobody wants it any more.
      function abort() {
        if (!line_of(address).drop(one)) return;
        const error = new DOMException("not wanted any more", "AbortError");
        if (!begun) reject(error); else { try { stream.error(error); } catch { /* It was cancelled. */ } }
      }
      if (options && options.signal) options.signal.addEventListener("abort", abort);
      line_of(address).ask(one);
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

  // A link that shows what is at an address in a tab of its own, once it is made. There it has this page's policy.
  function page(a, failed) {
    const address = a.getAttribute("href");
    a.onclick = (event) => {
      event.preventDefault();
      // Only now may a tab be opened, as far as browsers go.
      const tab = open_tab();
      if (!tab) return failed(new Error("the browser has not opened a tab: allow this page to do that"));
      tab.document.title = a.textContent;
      tab.document.body.textContent = "One moment …";
      file(address).then(({ blob }) => tab.location.replace(URL.createObjectURL(blob))).catch((error) => { tab.close(); failed(error); });
    };
    return a;
  }
  const open_tab = () => window.open("", "_blank");

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

  return { fetch, link, page, picture, whenOpened(call) { opened = call; } };
})();
