//! For tests only: the kernel oracle, manifests, operation scripts, models and faulty devices.
