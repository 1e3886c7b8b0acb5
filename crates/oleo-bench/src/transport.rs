//! Which of the kernel's two ways of talking to a FUSE server a run uses.
//!
//! `oleo mount` takes io_uring if the fuse module offers it. [`Chosen`] switches the module's parameter for all mounts
//! that are made while it lives, of this program and of any other, and puts it back.

use anyhow::{Context, Result};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How mounts talk to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Over io_uring.
    Rings,
    /// By reading and writing `/dev/fuse`.
    Device,
}

impl Transport {
    /// For the report.
    pub fn words(self) -> &'static str {
        match self {
            Transport::Rings => "mounts over io_uring (enable_uring is Y)",
            Transport::Device => "mounts over /dev/fuse (enable_uring is N)",
        }
    }

    fn value(self) -> &'static str {
        match self {
            Transport::Rings => "Y",
            Transport::Device => "N",
        }
    }
}

/// The choice is in force while this lives.
pub struct Chosen {
    before: String,
}

impl Chosen {
    /// Sets the module's parameter. An error means that there is none, or that this is not root.
    pub fn set(transport: Transport) -> Result<Chosen> {
        let before = std::fs::read_to_string(SWITCH).with_context(|| format!("reading {SWITCH}"))?;
        std::fs::write(SWITCH, transport.value()).with_context(|| format!("setting {SWITCH}"))?;
        Ok(Chosen { before })
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        // Nobody is there to be told; the next run sets it again.
        let _put_back = std::fs::write(SWITCH, self.before.trim());
    }
}
