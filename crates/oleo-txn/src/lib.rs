//! Transactions: begin, join, freeze, settle, write, publish; bookkeeping trees, back references, snapshots.
