//! All integration tests of `oleo-txn` in one program: it is linked once, and the runner queues its tests with all others.

mod churn;
mod together;
