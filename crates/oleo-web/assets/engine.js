// The compiled part (a module) and how to call it, for the worker and for tests in node. `read(file, offset, bytes)` fills bytes from a file; `say(what, bytes)` hears: 0 a head, 1 a piece, 2 an error. Bytes are
// only good during the call.
"use strict";

async function oleoEngine(wasm, read, say) {
  let memory = null;
  const bytes = (at, len) => new Uint8Array(memory.buffer, at >>> 0, len >>> 0);
  const instance = await WebAssembly.instantiate(wasm, {
    oleo: {
      read(file, offset, to, len) {
        try { read(file, Number(offset), bytes(to, len)); return 0; } catch { return 1; }
      },
      say(what, from, len) { return say(what, bytes(from, len)) === false ? 1 : 0; },
    },
  });
  memory = instance.exports.memory;
  const give = (text) => {
    const encoded = new TextEncoder().encode(text);
    const at = instance.exports.oleo_input(encoded.length);
    if (!at) throw new Error("too long");
    bytes(at, encoded.length).set(encoded);
  };
  return {
    // Whether the volume was opened; files are pairs of a name and a length.
    open(files) { give(JSON.stringify(files)); return instance.exports.oleo_open() === 0; },
    // Whether the whole answer was said.
    ask(address) { give(address); return instance.exports.oleo_ask() === 0; },
    // Bytes of memory that it has.
    memory() { return memory.buffer.byteLength; },
  };
}
