//! Immutable tree blocks: verified cache, cursors, sorted batch application, walk and difference.
