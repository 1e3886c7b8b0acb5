//! Receiving on a mount: the stream goes from who asks to the server through a socket of its own.
//!
//! Normal path: (1) the client listens at a name that nobody else may use ([`Feed`](super::super::Feed)), and asks; (2) the server connects to
//! it, sees that it is the caller's, and reads the stream from it; (3) the reply says what was received, and the error of the stream
//! if there is one, so that the client knows what was done before.
//!
//! A client that goes away ends its stream, which then is one that is cut short; so does one that is silent for
//! [`STALL_MAX`](super::super::STALL_MAX). Until then the mount is in use.

use crate::control::bytes::Bytes;
use crate::control::caller::{Caller, WRITE};
use crate::control::error::Error;
use crate::control::feed::connect;
use crate::control::invalidation::Invalidation;
use crate::control::location::Location;
use crate::control::reply::{Received, Reply};
use crate::control::request::ReceiveHow;
use crate::receive::{Receive, ReceiveOptions};
use crate::{Image, TreeId};

/// Carries the request out.
pub(super) fn receive(
    image: &Image,
    caller: &Caller,
    into: &Location,
    feed: &Bytes,
    rebase: Option<TreeId>,
    how: &ReceiveHow,
) -> Result<(Reply, Vec<Invalidation>), Error> {
    caller.must_be_privileged("receive")?;
    let fs = image.fs();
    let dir = caller.find(image, into)?;
    caller.must_have(fs, &dir, WRITE)?;
    let stream = connect(caller, feed)?;
    let how = Receive {
        atomic: how.atomic,
        options: ReceiveOptions::default()
            .one_stream(how.one_stream)
            .errors_passed_max(how.errors_passed_max)
            .resume(how.resume),
        ..Receive::default()
    };
    let (report, result) = image.receive_into(&dir, rebase, stream, &how)?;
    let mut changed = vec![Invalidation::Inode { tree: dir.tree(), ino: dir.ino() }];
    for subvol in &report.subvols {
        // Somebody may have looked into it while it was incomplete.
        if let Ok(root) = image.resolve(&dir, &subvol.path)
            && root.tree() != dir.tree()
        {
            changed.push(Invalidation::Subtree { tree: root.tree() });
        }
        let name = subvol.path.clone();
        changed.push(Invalidation::Entry { tree: dir.tree(), dir: dir.ino(), name });
    }
    let received = Received::of(report, result.err().map(Error::from));
    Ok((Reply::Received(Box::new(received)), changed))
}
