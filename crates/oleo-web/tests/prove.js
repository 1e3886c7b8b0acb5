// What the compiled part does in node: node prove.js WASM [PAGES]. Each line that it is given is JSON, `{"jobs": […], "images": […]}`; it answers with a line of JSON for the opening and for each job, and with
// `null` when that is all. Jobs: list=PATH, read=PATH, ask=ADDRESS, hash=ADDRESS, walk=PATH. Memory does not grow with what is read.
"use strict";

const fs = require("fs");
const path = require("path");
const readline = require("readline");
const vm = require("vm");
const { createHash } = require("crypto");

vm.runInThisContext(fs.readFileSync(path.join(__dirname, "../assets/engine.js"), "utf8"));
const wasm = new WebAssembly.Module(bounded(fs.readFileSync(process.argv[2]), process.argv[3]));

// With a bound on its memory, in pages of 64 KiB from 128 to 16383, in place of what it has been compiled with.
function bounded(bytes, pages) {
  if (!pages) return bytes;
  let at = 8;
  const number = () => { let n = 0, shift = 0, byte; do { byte = bytes[at++]; n |= (byte & 127) << shift; shift += 7; } while (byte > 127); return n; };
  for (;;) {
    const kind = bytes[at++], len = number(), end = at + len;
    if (kind === 5) {
      // One memory, with a bound, what it begins with, and what it may have.
      if (number() !== 1 || bytes[at++] !== 1) throw new Error("no bound");
      number();
      if (end - at !== 2) throw new Error("the bound is not of two bytes");
      bytes.set([pages & 127 | 128, pages >> 7], at);
      return bytes;
    }
    at = end;
  }
}

// Milliseconds by the clock and by the processor: the second is what it would be if nobody else used the machine, or a little more.
function now() {
  const { user, system } = process.cpuUsage();
  return [performance.now(), (user + system) / 1000];
}
const since = (then) => now().map((value, n) => value - then[n]);

function tell(value) { console.log(JSON.stringify(value)); }

let error = null;

async function prove(jobs, images) {
  const files = images.map((name) => ({ name: path.basename(name), fd: fs.openSync(name), size: fs.statSync(name).size }));
  let slices = 0, hear = null, head = null, pieces = 0;
  function read(file, offset, bytes) {
    slices += 1;
    for (let at = 0; at < bytes.length;) {
      const n = fs.readSync(files[file].fd, bytes, at, bytes.length - at, offset + at);
      if (!n) throw new Error("short");
      at += n;
    }
  }
  function say(what, bytes) {
    if (what === 0) { head = JSON.parse(Buffer.from(bytes).toString()); return; }
    if (what !== 1) { error = error || Buffer.from(bytes).toString(); return; }
    pieces += 1;
    return hear(bytes);
  }
  const engine = await oleoEngine(wasm, read, say);
  // Whether the whole answer came, and what it is.
  const asked = (address, each) => {
    [hear, head, error, pieces] = [each, null, null, 0];
    return engine.ask(address);
  };
  const whole = (address) => {
    const parts = [];
    const is_whole = asked(address, (bytes) => parts.push(Buffer.from(bytes)));
    return { is_whole, text: Buffer.concat(parts).toString() };
  };
  // As much of an answer as is asked for.
  const some = (address, max) => {
    let bytes = 0;
    asked(address, (piece) => { bytes += piece.length; return bytes < max; });
    return bytes;
  };
  error = null;
  let began = now();
  const is_open = engine.open(files.map((file) => [file.name, file.size]));
  tell({ open: is_open, error, ms: Math.min(...since(began)), slices });
  for (const job of is_open ? jobs : []) {
    const what = job.slice(0, job.indexOf("=")), where = job.slice(job.indexOf("=") + 1);
    began = now();
    const before = slices;
    const raw = encodeURIComponent(where).replaceAll("%2F", "/");
    if (what === "list") {
      let after = 0, entries = 0;
      do {
        const page = JSON.parse(whole("api/list?path=" + raw + "&limit=1000&after=" + after).text);
        entries += page.entries.length;
        after = page.next;
      } while (after);
      tell({ list: where, entries, ms: Math.min(...since(began)), slices: slices - before });
    } else if (what === "read" || what === "hash") {
      // Hashing is not counted.
      const hash = createHash("sha256");
      let bytes = 0;
      const hashing = [0, 0];
      const is_whole = asked(what === "read" ? "file?path=" + raw : where, (piece) => {
        const from = now();
        hash.update(piece);
        bytes += piece.length;
        since(from).forEach((value, n) => { hashing[n] += value; });
      });
      const ms = Math.min(...since(began).map((value, n) => value - hashing[n]));
      tell({ [what]: where, is_whole, error, bytes, ms, mb_per_s: bytes / 1000 / ms, sha256: hash.digest("hex"), slices: slices - before, memory: engine.memory() });
    } else if (what === "walk") {
      // Everything, as far as it goes; of files the beginning.
      const dirs = [raw];
      let entries = 0, bytes = 0;
      for (let n = 0; n < dirs.length && n < 200; n++) {
        const list = whole("api/list?limit=1000&path=" + dirs[n]);
        if (head.status !== 200) continue;
        for (const entry of JSON.parse(list.text).entries || []) {
          const at = dirs[n] ? dirs[n] + "/" + entry.raw : entry.raw;
          entries += 1;
          if (entry.kind === "dir") { dirs.push(at); continue; }
          bytes += some("file?path=" + at, 8 << 20);
          whole("api/list?path=" + at);
        }
      }
      for (const address of ["api/info", "api/subvolumes", "api/search?name=a&path=" + raw, "api/compare?old=5&new=256", "api/check?data=1", "map.html", "map.svg", "map.json"]) whole(address);
      for (const archive of ["zip", "tar"]) some(archive + "?path=" + raw, 8 << 20);
      tell({ walk: where, entries, bytes, memory: engine.memory() });
    } else {
      const { is_whole, text } = whole(where);
      tell({ ask: where, is_whole, error, status: head.status, text, pieces, ms: Math.min(...since(began)), slices: slices - before, memory: engine.memory() });
    }
  }
  files.forEach((file) => fs.closeSync(file.fd));
  tell(null);
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { jobs, images } = JSON.parse(line);
    await prove(jobs, images);
  }
})().catch((trap) => {
  console.error(error, trap);
  process.exit(1);
});
