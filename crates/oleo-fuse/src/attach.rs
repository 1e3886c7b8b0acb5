//! Makes the connection: mounts as root with mount(2), as other users through `fusermount3`; and unmounts.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use oleo_device::fuse::open_channel;
use oleo_device::loops::LoopDevice;
use oleo_device::mountinfo::{Mount, mounts_of};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// The helper that mounts for users who are not root.
const FUSERMOUNT: &str = "fusermount3";
/// How the helper learns which of its descriptors leads to us.
const COMMFD: &str = "_FUSE_COMMFD";

/// How the mount is to look.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// What df and findmnt show as the source.
    pub source: String,
    /// The part of the type behind `fuse.`.
    pub subtype: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// The source is a block device, which the kernel is to hold for the mount. Then it notifies the server of the end
    /// and of syncfs(2), and waits for both. For root alone.
    pub block: bool,
    /// Flags of every mount: nosuid, nodev, noexec …
    pub flags: MountFlags,
}

/// Mounts, and returns the channel to the kernel.
///
/// # Errors
/// FUSE is not available, or the directory may not be mounted on.
pub fn attach(dir: &Path, options: &AttachOptions) -> io::Result<File> {
    if rustix::process::geteuid().is_root() { attach_as_root(dir, options) } else { attach_as_user(dir, options) }
}

/// Mounts as root with a loop device on top of an image file as the source, so that the kernel passes sync(2) and syncfs(2)
/// on to the server. The kernel detaches the loop device at the end of the mount.
///
/// # Errors
/// As [`attach`] and [`LoopDevice::attach`]; nothing is mounted then.
pub(crate) fn attach_image(dir: &Path, image: &Path, options: &AttachOptions) -> io::Result<File> {
    let device = LoopDevice::attach(image)?;
    let source = device.path().display().to_string();
    attach_as_root(dir, &AttachOptions { source, block: true, ..options.clone() })
}

/// Whether the kernel sends FUSE_SYNCFS to servers of block devices: from Linux 6.18 on.
pub(crate) fn kernel_passes_sync() -> bool {
    passes_sync(rustix::system::uname().release().to_bytes())
}

fn passes_sync(release: &[u8]) -> bool {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
    let mut numbers = release.split(|b| !b.is_ascii_digit()).map_while(number);
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= (6, 18))
}

fn attach_as_root(dir: &Path, options: &AttachOptions) -> io::Result<File> {
    const DIRECTORY_MODE: &str = "40000";
    let channel = open_channel()?;
    let mut data = format!(
        "fd={},rootmode={DIRECTORY_MODE},user_id={},group_id={},default_permissions",
        channel.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.block {
        // The smallest unit of the device that the kernel itself would use; it does not read any.
        data.push_str(",blksize=4096");
    }
    let mut flags = options.flags;
    flags.set(MountFlags::RDONLY, options.read_only);
    let kind = CString::new(format!("{}.{}", if options.block { "fuseblk" } else { "fuse" }, options.subtype))?;
    rustix::mount::mount(options.source.as_str(), dir, kind, flags, Some(CString::new(data)?.as_c_str()))?;
    Ok(channel)
}

fn attach_as_user(dir: &Path, options: &AttachOptions) -> io::Result<File> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper splits them at commas.
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let (source, subtype) = (escaped(&options.source), escaped(&options.subtype));
    let mut list = format!("fsname={source},subtype={subtype},default_permissions");
    let words = [
        (options.allow_other, "allow_other"),
        (options.read_only, "ro"),
        (options.flags.contains(MountFlags::NOEXEC), "noexec"),
        (options.flags.contains(MountFlags::NOATIME), "noatime"),
        (options.flags.contains(MountFlags::NODIRATIME), "nodiratime"),
        (options.flags.contains(MountFlags::SYNCHRONOUS), "sync"),
        (options.flags.contains(MountFlags::DIRSYNC), "dirsync"),
    ];
    for (_, word) in words.iter().filter(|w| w.0) {
        list.push(',');
        list.push_str(word);
    }
    let output = Command::new(FUSERMOUNT)
        .args(["-o", &list, "--"])
        .arg(dir)
        .env(COMMFD, "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("{FUSERMOUNT}, which mounts for users: {e}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
    }
    receive_channel(&ours)
}

fn receive_channel(from: &UnixStream) -> io::Result<File> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(File::from(fd));
        }
    }
    Err(io::Error::other(format!("{FUSERMOUNT} sent no channel")))
}

/// Unmounts what is mounted on `dir`; if `device` ("major:minor") is given, only the mount of that device, which may
/// have moved with a directory above it since. `lazily`: even if it is in use; there are no new users then.
///
/// # Errors
/// It is not mounted, in use, or not the caller's.
pub fn detach(dir: &Path, device: Option<&str>, lazily: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
        return match device {
            Some(device) => detach_device(dir, device, flags),
            None => Ok(rustix::mount::unmount(dir, flags)?),
        };
    }
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(dir);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said =
        if said.is_empty() { format!("cannot unmount {}", dir.as_os_str().as_bytes().escape_ascii()) } else { said };
    // fusermount3 passes on the words of the system's error, not its number; it does not translate them.
    Err(if said.contains("Device or resource busy") { Errno::BUSY.into() } else { io::Error::other(said) })
}

/// Unmounts the mount of a device. The directory above it is held, so that a user who may rename what is above cannot
/// replace the mount by another between the check and the call.
fn detach_device(dir: &Path, device: &str, flags: UnmountFlags) -> io::Result<()> {
    let mounts: Vec<Mount> = mounts_of("self")?.into_iter().filter(|mount| mount.device == device).collect();
    let place = mounts.iter().find(|mount| mount.at == dir).or(mounts.first());
    let place = &place.ok_or_else(|| io::Error::from(Errno::INVAL))?.at;
    let (Some(above), Some(name)) = (place.parent(), place.file_name()) else { return Err(Errno::INVAL.into()) };
    let above = rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // The server need not reply.
    let look = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&above, name, look, StatxFlags::empty())?;
    if format!("{}:{}", found.stx_dev_major, found.stx_dev_minor) != device {
        return Err(io::Error::other("something else is there now"));
    }
    Ok(rustix::mount::unmount(Path::new(&format!("/proc/self/fd/{}", above.as_raw_fd())).join(name), flags)?)
}

/// Lets the kernel read ahead on a mount as far as one request reaches, if we may set that. Best effort: it only affects
/// speed.
pub(crate) fn read_ahead(mount: &Mount, bytes: usize) {
    // The number alone is that of the block device.
    let suffix = if mount.kind.starts_with("fuseblk") { "-fuseblk" } else { "" };
    let _ =
        std::fs::write(format!("/sys/class/bdi/{}{suffix}/read_ahead_kb", mount.device), (bytes / 1024).to_string());
}

#[cfg(test)]
mod tests {
    use super::passes_sync;

    /// Goal: the kernel's version is compared as numbers.
    #[test]
    fn versions_of_the_kernel() {
        for (release, passes) in [
            ("6.18.44-fc", true),
            ("6.18-rc1", true),
            ("6.100.0", true),
            ("7.0", true),
            ("10.2", true),
            ("6.17.13", false),
            ("6.9.1", false),
            ("5.19", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(passes_sync(release.as_bytes()), passes, "{release}");
        }
    }
}
