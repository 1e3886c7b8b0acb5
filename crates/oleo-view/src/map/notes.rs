//! What a map cannot say, collected while it is made.

/// Notes, and how many blocks could not be read. Only the latter may be better the next time.
#[derive(Default)]
pub(super) struct Notes {
    pub said: Vec<String>,
    pub unread: u64,
}

impl Notes {
    pub fn push(&mut self, note: String) {
        self.said.push(note);
    }
}
