//! Where replies are written to.

use std::io::{self, Write};

use serde_json::Value;

/// What a reply is written to. Fails when nobody reads any more.
pub trait Output: Write + Send {
    /// Whether somebody still reads.
    fn is_read(&self) -> bool;

    /// A value and a line's end, handed on.
    fn line(&mut self, value: &Value) -> io::Result<()> {
        self.write_all(value.to_string().as_bytes())?;
        self.write_all(b"\n")?;
        self.flush()
    }
}
