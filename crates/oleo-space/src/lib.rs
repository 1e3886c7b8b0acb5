//! What is free, reserved, pinned and owed: block groups, the allocator, the ledger of delayed refs.
