// What the compiled part does in node: node prove.js WASM JOB… -- IMG…; a line of JSON for each. Jobs: list=PATH, read=PATH, ask=ADDRESS, walk=PATH. Memory does not grow with what is read.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { createHash } = require("crypto");

vm.runInThisContext(fs.readFileSync(path.join(__dirname, "../assets/engine.js"), "utf8"));
const [wasm, ...rest] = process.argv.slice(2);
const middle = rest.indexOf("--");
const jobs = rest.slice(0, middle).map((word) => [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)]);
const files = rest.slice(middle + 1).map((name) => ({ name: path.basename(name), fd: fs.openSync(name), size: fs.statSync(name).size }));
let slices = 0;

function read(file, offset, bytes) {
  slices += 1;
  for (let at = 0; at < bytes.length;) {
    const n = fs.readSync(files[file].fd, bytes, at, bytes.length - at, offset + at);
    if (!n) throw new Error("short");
    at += n;
  }
}

let hear = null, head = null, error = null;
function say(what, bytes) {
  if (what === 0) head = JSON.parse(Buffer.from(bytes).toString());
  else if (what === 1) return hear(bytes);
  else error = error || Buffer.from(bytes).toString();
}

// Milliseconds by the clock and by the processor: the second is what it would be if nobody else used the machine, or a little more.
function now() {
  const { user, system } = process.cpuUsage();
  return [performance.now(), (user + system) / 1000];
}
const since = (then) => now().map((value, n) => value - then[n]);

function tell(value) { console.log(JSON.stringify(value)); }

(async () => {
  const engine = await oleoEngine(fs.readFileSync(wasm), read, say);
  // Whether the whole answer came, and what it is.
  const asked = (address, each) => {
    [hear, head, error] = [each, null, null];
    return engine.ask(address);
  };
  const whole = (address) => {
    const parts = [];
    const is_whole = asked(address, (bytes) => parts.push(Buffer.from(bytes)));
    return { is_whole, text: Buffer.concat(parts).toString() };
  };
  let began = now();
  const is_open = engine.open(files.map((file) => [file.name, file.size]));
  tell({ open: is_open, error, ms: Math.min(...since(began)), slices });
  if (!is_open) return;
  for (const [what, where] of jobs) {
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
    } else if (what === "read") {
      // Hashing is not counted.
      const hash = createHash("sha256");
      let bytes = 0;
      const hashing = [0, 0];
      const is_whole = asked("file?path=" + raw, (piece) => {
        const from = now();
        hash.update(piece);
        bytes += piece.length;
        since(from).forEach((value, n) => { hashing[n] += value; });
      });
      const ms = Math.min(...since(began).map((value, n) => value - hashing[n]));
      tell({ read: where, is_whole, error, bytes, ms, mb_per_s: bytes / 1000 / ms, sha256: hash.digest("hex"), slices: slices - before, memory: engine.memory() });
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
          let here = 0;
          asked("file?path=" + at, (piece) => { here += piece.length; return here < 8 << 20; });
          bytes += here;
          whole("api/list?path=" + at);
        }
      }
      for (const address of ["api/info", "api/subvolumes", "api/search?name=a&path=" + raw, "api/compare?old=5&new=256"]) whole(address);
      let here = 0;
      asked("zip?path=" + raw, (piece) => { here += piece.length; return here < 8 << 20; });
      tell({ walk: where, entries, bytes });
    } else {
      const { is_whole, text } = whole(where);
      tell({ ask: where, is_whole, error, status: head.status, text });
    }
  }
})().catch((trap) => {
  console.error(error, trap);
  process.exit(1);
});
