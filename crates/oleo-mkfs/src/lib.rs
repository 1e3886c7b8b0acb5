//! Makes a file system: the first trees, deterministic, and filling it from a directory or a tar.
