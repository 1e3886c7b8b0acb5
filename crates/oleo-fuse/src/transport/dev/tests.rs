use super::*;
use crate::{AttachOptions, attach, detach};

/// Knows its root; names with a "p" make it panic, others are not there.
struct Panics;

impl Handler for Panics {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        match &request.op {
            Op::Lookup { name } if name.contains(&b'p') => panic!("a name with a p"),
            Op::GetAttr => {
                let attr = abi::Attr { ino: 1, mode: 0o040_755, nlink: 1, ..Default::default() };
                reply.put(&abi::AttrOut { attr_valid: 100, attr_valid_nsec: 0, dummy: 0, attr });
                Outcome::Done
            }
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt => Outcome::Silent,
            _ => Outcome::Failed(Errno::NOENT.raw_os_error()),
        }
    }
}

/// Goal: a panic while a request is answered is an error to its caller, and to nobody else; no thread is lost. Method: a mount whose
/// server panics at some names; many more of these than there are threads, then others.
#[test]
fn a_panic_is_an_answer() {
    if !rustix::process::geteuid().is_root() {
        oleo_sim::oracle::skip("only root mounts without a helper");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = AttachOptions {
        source: "panics".to_owned(),
        subtype: "oleo-test".to_owned(),
        read_only: true,
        allow_other: false,
        block: false,
        flags: rustix::mount::MountFlags::empty(),
    };
    let channel = DevFuse::new(attach(dir.path(), &options).unwrap(), 4);
    channel
        .handshake(&|init| {
            let minor = abi::MINOR.min(init.minor);
            Ok(abi::InitOut { major: abi::MAJOR, minor, max_write: 4096, ..Default::default() })
        })
        .unwrap();
    let served = std::thread::spawn(move || channel.serve(Arc::new(Panics)));
    for n in 0..40 {
        let found = std::fs::metadata(dir.path().join(format!("p{n}")));
        assert_eq!(found.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        let found = std::fs::metadata(dir.path().join(format!("n{n}")));
        assert_eq!(found.unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
    detach(dir.path(), None, false).unwrap();
    served.join().unwrap().unwrap();
}
