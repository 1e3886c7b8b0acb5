//! What is inside the trees of files: one judge per tree, fed with its items in key order.
